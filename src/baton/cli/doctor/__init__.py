"""`baton doctor`: what is here, what works, and what to do about what does not."""
