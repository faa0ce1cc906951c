"""How many files a process may have open: each stream of a gateway is a socket, and takes one."""

import resource

LEAST_FILES = 4096  # a thousand streams, and room


def raise_limit() -> int | None:
    """Raise this process's soft limit to the hard one, as any process may; the limit now, None without one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass  # more than the kernel gives any process (fs.nr_open)
    return None if soft == resource.RLIM_INFINITY else soft
