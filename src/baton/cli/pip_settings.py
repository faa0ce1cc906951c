"""Reads pip's package indexes from its environment
and configuration; Baton fetches from the same."""

import configparser
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs

from baton.adapters.package_index import Index
from baton.core.errors import ConfigError

PUBLIC = "https://pypi.org/simple"
SECTIONS = ("global", "download")  # the later one wins
PREFIX = "PIP_"


def pip_index(environ: Mapping[str, str] = os.environ) -> Index:
    """Return the indexes, certificates and proxy that `pip download` would use.

    Raises:
        ConfigError: a configuration file does not parse
    """
    found: dict[str, str] = {}
    for file in config_files(environ):
        found |= read_config(file)
    found |= {
        _name(key.removeprefix(PREFIX)): value
        for key, value in environ.items()
        if key.startswith(PREFIX) and value
    }
    urls = [*(found.get("index-url") or PUBLIC).split(), *found.get("extra-index-url", "").split()]
    cert = found.get("cert")
    return Index(
        urls=()
        if found.get("no-index", "0").lower() in ("1", "true", "yes", "on")
        else tuple(urls),
        certificates=os.path.expanduser(cert) if cert else None,
        proxy=found.get("proxy") or None,
    )


def config_files(environ: Mapping[str, str]) -> Sequence[Path]:
    """Return pip's configuration files, which need not exist; later files win."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return ()
    machine = [
        *(
            Path(directory)
            for directory in platformdirs.site_config_dir("pip", multipath=True).split(os.pathsep)
        )
    ]
    user = [Path.home() / ".pip", Path(platformdirs.user_config_dir("pip"))]
    first = [directory / "pip.conf" for directory in (*machine, Path("/etc"))]
    own = (
        [directory / "pip.conf" for directory in user]
        if not (named and Path(named).exists())
        else []
    )
    return [*first, *own, Path(sys.prefix) / "pip.conf", *([Path(named)] if named else [])]


def read_config(file: Path) -> Mapping[str, str]:
    """Return the settings for `pip download` in one file; empty if it is missing or unreadable."""
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(file.read_text())
    except OSError:
        return {}
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ConfigError(
            f"pip's configuration {file} does not parse: {' '.join(str(error).split())}"
        ) from error
    return {
        _name(key): value
        for section in SECTIONS
        if parser.has_section(section)
        for key, value in parser.items(section)
    }


def _name(key: str) -> str:
    return key.lower().replace("_", "-").removeprefix("--")
