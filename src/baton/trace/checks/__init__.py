"""Invariants that hold over a log, each judged by books of its own: nothing here asks the core what it thinks."""
