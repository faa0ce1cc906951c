"""The handoff: which bytes go where (plan.py), what they must sum to (seal.py), and which workers
may read from each other (pairing.py).

It consists of pure functions and small tables, and schedules nothing. Begin with plan.py.
"""
