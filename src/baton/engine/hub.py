"""Fetches models of the Hugging Face Hub by id, once, into the Hub's own cache."""

import re
from pathlib import Path

from baton.core.errors import ConfigError

ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
WANTED = ["*.json", "*.safetensors", "*.jinja", "tiktoken.model"]
UNWANTED = ["original/*", "consolidated*", "onnx/*"]  # copies in other formats


def is_id(name: str) -> bool:
    """Whether a name can be an id: owner/model."""
    return ID.fullmatch(name) is not None


def cached(model: str) -> Path | None:
    """Return the directory of a completely fetched model, or None, without network access."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        found = Path(
            snapshot_download(
                model, allow_patterns=WANTED, ignore_patterns=UNWANTED, local_files_only=True
            )
        )
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return found if (found / "config.json").is_file() and any(found.glob("*.safetensors")) else None


def fetch(model: str) -> Path:
    """Fetch a model, or its missing files, with a progress bar; returns its directory.

    Raises:
        ConfigError: the model does not exist, is gated, or has no safetensors, or the Hub cannot be
            reached
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        found = Path(snapshot_download(model, allow_patterns=WANTED, ignore_patterns=UNWANTED))
    except GatedRepoError as error:
        raise ConfigError(
            f"model {model} is gated: accept its terms on huggingface.co, then run: hf auth login"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ConfigError(
            f"model {model}: there is no such directory, and the Hugging Face Hub has no such "
            "model; "
            "for a private one run: hf auth login"
        ) from error
    # the library passes on errors of its HTTP client, which differ between versions
    except Exception as error:
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"model {model} cannot be fetched from the Hugging Face Hub ({why[0]}); "
            "give the directory of a checkpoint, or retry with a network"
        ) from error
    if not any(found.glob("*.safetensors")):
        raise ConfigError(
            f"model {model} has no *.safetensors on the Hugging Face Hub; "
            "convert its weights to safetensors first"
        )
    return found
