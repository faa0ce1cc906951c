"""`baton doctor`: checks what is installed and what works, and names remedies."""
