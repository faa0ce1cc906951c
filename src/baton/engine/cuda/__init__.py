"""Kernels for pools in the memory of CUDA devices, written in Triton."""
