"""The handoff: which bytes go where (plan.py), what they must sum to (seal.py), who may read from
whom (pairing.py).

Pure values and small books; nobody's turn is decided here. Begin with plan.py.
"""
