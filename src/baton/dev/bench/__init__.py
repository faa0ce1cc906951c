"""Benchmarks: whole services of real processes, measured from outside and from their logs."""
