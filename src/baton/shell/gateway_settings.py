"""The settings of a gateway process."""

import os
from typing import Annotated

from baton.ports.flag import HTTP, ONE_OR_MORE, PROCESSES, Flag, NumberLimits
from baton.ports.written import path
from baton.shell.settings import DAY_S, TIMEOUT, ProcessSettings


def word_or_folder(_flag: str, text: str) -> str:
    """Return the known word unchanged, or the absolute path of a folder."""
    return text if text in ("auto", "vllm") else os.path.abspath(text)


class GatewaySettings(ProcessSettings, frozen=True, kw_only=True):
    """Settings of one gateway. Its HTTP side has more
    (`gateway/settings.py`), from files and the model."""

    host: Annotated[str, Flag("Address on which HTTP listens.", HTTP)] = "127.0.0.1"
    port: Annotated[
        int,
        Flag(
            "Port on which HTTP listens; 0 takes a free one.", HTTP, limits=NumberLimits(1, 65_535)
        ),
    ] = 8000
    control: Annotated[str, Flag("Address on which workers register.", PROCESSES)] = (
        "tcp://127.0.0.1:5555"
    )
    api_keys: Annotated[
        tuple[str, ...],
        Flag(
            "Key that clients must send; may be repeated, and shows in ps.",
            HTTP,
            ("--api-key",),
            repeated=True,
            metavar="KEY",
        ),
    ] = ()
    api_key_files: Annotated[
        tuple[str, ...],
        Flag(
            "File of keys, one on each line; may be repeated.",
            HTTP,
            ("--api-key-file",),
            read=path,
            repeated=True,
            metavar="FILE",
        ),
    ] = ()
    skip_server_warmup: Annotated[
        bool, Flag("Be ready without a request of its own through every pair of workers.", HTTP)
    ] = False
    request_timeout_s: Annotated[
        float, Flag("Seconds that a request may take, all in all.", HTTP, limits=TIMEOUT)
    ] = 600.0
    queue_timeout_s: Annotated[
        float,
        Flag(
            "Seconds of them that it may wait for memory; never more than half of them.",
            HTTP,
            limits=TIMEOUT,
        ),
    ] = 30.0
    max_queued: Annotated[
        int,
        Flag(
            "Requests that may wait; more get 429 at once.",
            HTTP,
            ("--max-queued-requests",),
            limits=ONE_OR_MORE,
        ),
    ] = 1024
    shutdown_timeout_s: Annotated[
        float,
        Flag(
            "Seconds that open requests may go on after SIGTERM or Ctrl-C; a second one ends "
            "them at once.",
            HTTP,
            limits=NumberLimits(0, DAY_S, "seconds"),
        ),
    ] = 60.0
    generation_config: Annotated[
        str,
        Flag(
            "Sampling defaults: auto (the model's generation_config.json), vllm (neutral), "
            "or a folder that holds such a file.",
            HTTP,
            read=word_or_folder,
            metavar="auto|vllm|DIR",
        ),
    ] = "auto"
    override_generation_config: Annotated[
        str | None,
        Flag(
            "Sampling defaults that win over that file, e.g. '{\"temperature\": 0.2}'.",
            HTTP,
            metavar="JSON",
        ),
    ] = None
