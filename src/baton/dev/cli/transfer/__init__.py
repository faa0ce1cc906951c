"""`baton bench transfer`: two processes, and the command that starts them."""
