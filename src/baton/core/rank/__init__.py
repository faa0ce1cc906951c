"""One rank: applies its leader's plans in order, reads, verifies, computes, and reports what it has
seen.

Knows memory and handoff; not the scheduler, whose orders come as plans (core/agreement.py). Begin
with rank.py.
"""
