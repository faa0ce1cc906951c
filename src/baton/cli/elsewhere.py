"""Flags of vLLM and SGLang that `baton` does not take: what to write instead.

Most flags of theirs that mean something here are accepted under their own names (options.py). These
are others that people try.
"""

from collections.abc import Mapping

_SIZE = "the size of a pool is said, not guessed: --kv-memory 2GiB"
_OUT = "leave it out:"

INSTEAD: Mapping[str, str] = {
    "--gpu-memory-utilization": _SIZE,
    "--mem-fraction-static": _SIZE,
    "--swap-space": "--host-kv-memory 4GiB, of each rank",
    "--kv-offloading-size": "--host-kv-memory 4GiB, of each rank",
    "--kv-transfer-config": "prefill and decode are apart unless --role unified is given, "
    "and --fabric says how state moves",
    "--data-parallel-size": "--prefill and --decode say how many workers there are",
    "--dp-size": "--prefill and --decode say how many workers there are",
    "--disaggregation-bootstrap-port": f"{_OUT} workers meet at the gateway's --control",
    "--enable-chunked-prefill": f"{_OUT} prompts are always computed in chunks, of "
    "--max-num-batched-tokens",
    "--enforce-eager": f"{_OUT} nothing is captured",
    "--disable-cuda-graph": f"{_OUT} nothing is captured",
    "--trust-remote-code": f"{_OUT} no code of a checkpoint is ever run",
    "--disable-log-requests": "--log-level warning",
    "--no-enable-log-requests": "--log-level warning",
    "--uvicorn-log-level": "--log-level",
    "--timeout-graceful-shutdown": "--shutdown-timeout",
}


def instead_of(complaint: str) -> str:
    """Add to a usage error about one of these flags what to write instead."""
    flag = complaint.removeprefix("No such option: ").split()[0]
    return f"No such option: {flag}; {INSTEAD[flag]}" if flag in INSTEAD else complaint
