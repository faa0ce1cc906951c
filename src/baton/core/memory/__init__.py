"""Memory of a worker, as its leader counts it: the state table, pages and who owns them, the prefix
cache, host memory.

Knows ids and errors alone. Begin with state.py: every other file counts in the pages and blocks
that it defines.
"""
