"""Formats byte sizes for people."""


def show_size(nbytes: int) -> str:
    """Format a size with three digits and a binary unit."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
