"""The command line of vLLM's engines with Baton's connector: `vllm serve` (docs/vllm.md)."""

import json
from collections.abc import Mapping
from typing import Any

from baton.shell.settings import Role

KV_ROLES = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


def serve_arguments(
    model: str, flags: Mapping[str, str], *, role: Role, connector: Mapping[str, Any]
) -> list[str]:
    """Return the words behind `vllm`.

    Args:
        flags: those of vLLM, with their values
        connector: the settings of Baton's connector (`vllm/settings.py`)
    """
    transfer = {
        "kv_connector": "BatonConnector",
        "kv_connector_module_path": "baton.vllm.connector",
        "kv_role": KV_ROLES[role],
        "kv_connector_extra_config": connector,
    }
    all_flags = {**flags, "--kv-transfer-config": json.dumps(transfer)}
    return ["serve", model, *(f"{flag}={value}" for flag, value in all_flags.items())]
