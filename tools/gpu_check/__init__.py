"""Checks on a machine with a GPU what machines without one cannot check: `make gpu-check`."""
