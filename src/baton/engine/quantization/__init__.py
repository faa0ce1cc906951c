"""Quantised weights: each method finds its tensors in a checkpoint and dequantises them at load.

`methods.py` has the table of methods; `interface.py` says what a method does.
"""
