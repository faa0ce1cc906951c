"""Benchmarks: whole services of real processes, measured from outside and by their logs."""
