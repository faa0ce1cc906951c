"""Grammars of structured output: what llguidance does for Baton.

The gateway makes and checks grammars with this package, and the rank that samples follows them.
Begin with matcher.py and request.py; how a schema is corrected for llguidance is dialect.py. Which
matcher belongs to which room is core/matchers.py.
"""
