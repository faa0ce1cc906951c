"""Grammars of structured output: what llguidance does for Baton.

The gateway makes and checks grammars with this package, and the rank that samples follows them.
Begin with matcher.py and request.py; how a schema is corrected for llguidance is dialect.py. Which
matcher belongs to which room is core/matchers.py.
"""

import os

# llguidance raises and catches thousands of errors while it builds some schemas. With a backtrace,
# which RUST_BACKTRACE=1 asks for, each takes a millisecond; this is read first, at the first error.
os.environ.setdefault("RUST_LIB_BACKTRACE", "0")
