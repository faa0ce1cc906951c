"""Invariants over a log. Each check keeps its own
state from events and effects; none asks the core."""
