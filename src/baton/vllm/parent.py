"""Ends a process of vLLM when the process of vLLM that has started it ends.

    server of HTTP ──starts──▶ engine core ──starts──▶ ranks

A server that ends in order ends the others. After SIGKILL its core would go on, and keep its memory
and its ports.
"""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """From now on, this process ends when its parent does. Has no effect on a process that another
    program than vLLM has started, such as one that uses `vllm.LLM` itself."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="baton-parent", daemon=True).start()
