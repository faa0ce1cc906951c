"""Which weights an engine serves, so that two engines with different ones never pair."""

from pathlib import Path
from typing import Any

from baton.core.errors import ConfigError
from baton.engine.checkpoint import Checkpoint


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
