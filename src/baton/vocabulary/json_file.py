"""Reads small JSON files of a checkpoint."""

import json
from pathlib import Path
from typing import Any

from baton.core.errors import ConfigError


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file counts as an empty object.

    Raises:
        ConfigError: the file is not JSON, or not an object
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} is not JSON: {e}") from e
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds a {type(found).__name__} where an object is expected")
    return found
