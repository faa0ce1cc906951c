"""Reads small JSON files of a checkpoint."""

import json
from pathlib import Path
from typing import Any

from baton.core.errors import ConfigError


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file counts as an empty object.

    Raises:
        ConfigError: the file is not JSON, has a text that is not Unicode, or is not an object
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        # half of a surrogate pair is no text, and readers of text fail at it later
        json.dumps(found, ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError) as e:
        raise ConfigError(f"{path} is not JSON: {e}") from e
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds a {type(found).__name__} where an object is expected")
    return found
