"""The memory of a worker, as its leader counts it: the state table, pages and their owners, the
prefix cache, host memory.

It knows ids and errors, and no other folder. Begin with state.py: every other file counts in the
pages and blocks that it defines.
"""
