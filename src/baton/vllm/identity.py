"""Which weights an engine serves, and how it computes with them, so that two engines with different
ones never pair."""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

from baton.core.errors import ConfigError
from baton.engine.checkpoint import Checkpoint

# of a model's configuration: where it was loaded from, and by what, changes no computation
IGNORED = ("_name_or_path", "transformers_version")


def computation(model_config: Any, cache_config: Any, version: str) -> str:
    """Return how an engine computes, beyond its weights, for people to read: vLLM's version, which
    arranges the content of a block, and what changes the computation. The configuration of the
    model, as it is after `--hf-overrides`, is told by a digest.

    Args:
        version: of vLLM
    """
    said = {
        "config": _relevant(model_config.hf_config.to_dict()),
        "quantization_config": model_config.quantization_config,
        "model_impl": model_config.model_impl,
        "model_class_overrides": model_config.model_class_overrides,
        "disable_sliding_window": model_config.disable_sliding_window,
    }
    raw = json.dumps(said, sort_keys=True, default=str).encode()
    digest = blake2b(raw, digest_size=6).hexdigest()
    return (
        f"vLLM {version}, quantization {model_config.quantization}, "
        f"kv-cache-dtype {cache_config.cache_dtype}, config {digest}"
    )


def _relevant(config: Any) -> Any:
    """Return a configuration, and those nested in it, without what changes no computation."""
    if not isinstance(config, dict):
        return config
    return {k: _relevant(v) for k, v in config.items() if k not in IGNORED}


def weights_identity(model_config: Any) -> str:
    """Return the identity of the checkpoint and the served dtype, in hex.

    Raises:
        ConfigError: the checkpoint is not on this machine
    """
    path = Path(model_config.model)
    if not path.is_dir():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            path = Path(
                snapshot_download(
                    model_config.model, revision=model_config.revision, local_files_only=True
                )
            )
        except LocalEntryNotFoundError as error:
            raise ConfigError(
                f"the checkpoint of {model_config.model!r} is not on this machine: {error}"
            ) from error
    dtype = str(model_config.dtype).removeprefix("torch.")
    return Checkpoint.open(path).identity(dtype)
