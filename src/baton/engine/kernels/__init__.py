"""CPU kernels over plain addresses: compiled at load, cached on disk, run without the GIL."""
