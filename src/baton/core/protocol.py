"""The numbers of the protocol: what this version speaks with its peers.

The first change of a frame after a release raises `PROTOCOL` by one. What peers that speak `OLDEST`
do not know yet is in session/older.py.
"""

PROTOCOL = 2
OLDEST = PROTOCOL - 1
SPOKEN = (OLDEST, PROTOCOL)
