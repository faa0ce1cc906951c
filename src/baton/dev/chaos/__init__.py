"""Breaks a running service and checks what its clients see."""
