"""Measures what one worker can do on this machine: how long steps of the engine and reads of a
fabric take."""
