"""Mutation testing of the core: how many small mistakes the simulator finds, and how many the unit
tests find besides."""
