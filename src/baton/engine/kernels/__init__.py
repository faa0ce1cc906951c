"""CPU kernels: compiled at load, cached on disk, run without the interpreter's lock, over plain addresses."""
