"""Baton beside other engines on one machine: the same weights and cases, in turns.

    __main__.py ──a line of JSON for each case──▶ one process for each engine, in an environment of its own
                ◀──────seconds of each step─────

Engines take turns case by case, so that what the machine does meanwhile hits all of them alike.
Beside each row stands what the machine could do at that moment (machine.py).
"""
