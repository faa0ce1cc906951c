"""Tools that test and measure Baton: the simulator, the contract of fabrics, benchmarks, and their
commands.

Workers and gateways import none of it.
"""
