"""What Baton is tested and measured with: the simulator, the contract of fabrics, benchmarks, and
their commands.

A worker or a gateway imports nothing of it.
"""
