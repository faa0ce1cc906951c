"""The limit on open files: each stream of a gateway is a socket and takes one."""

import resource

LEAST_FILES = 4096  # enough for a thousand streams


def raise_limit() -> int | None:
    """Raise this process's soft limit to the hard limit; returns the new limit, None = no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass  # the hard limit is above the kernel's own limit (fs.nr_open)
    return None if soft == resource.RLIM_INFINITY else soft
