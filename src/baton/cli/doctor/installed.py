"""Findings about packages, models and accelerators."""

import platform
import re
from collections.abc import Callable, Iterator
from importlib import metadata

from baton import __version__
from baton.adapters.nixl_agent import PACKAGES as NIXL
from baton.cli.doctor.finding import Finding, ok, problem, warning

NEEDED = re.compile(r"^[A-Za-z0-9_.-]+")
EXTRAS = {
    "nixl": (*(name.replace("_", "-") for name in NIXL),),
    "mooncake": ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine"),
    "cuda": ("triton",),
}
SHOWN = ("torch", "transformers", "tokenizers", "numba", "pyzmq", "fastapi")

Version = Callable[[str], str | None]


def version(name: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def required() -> list[str]:
    """Return the names of the packages that Baton requires, from its own metadata."""
    lines = metadata.requires("baton-llm") or []
    return [
        found.group() for line in lines if "extra ==" not in line and (found := NEEDED.match(line))
    ]


def packages(names: list[str], version: Version = version) -> Iterator[Finding]:
    """Check Baton itself, the required packages and the optional ones."""
    yield ok("installed", "baton", f"{__version__}, Python {platform.python_version()}")
    missing = [name for name in names if version(name) is None]
    if missing:
        yield problem(
            "installed", "packages", f"missing: {', '.join(missing)}", "pip install baton-llm"
        )
    shown = [f"{name} {found}" for name in SHOWN if (found := version(name))]
    yield ok("installed", "packages", ", ".join(shown))
    for extra, alternatives in EXTRAS.items():
        there = [f"{name} {found}" for name in alternatives if (found := version(name))]
        remedy = "" if there else f"pip install 'baton-llm[{extra}]'"
        yield ok("installed", extra, ", ".join(there) or "not installed", remedy)


def accelerators() -> Finding:
    """Report the GPUs that PyTorch sees."""
    try:
        import torch
    except ImportError as error:
        return problem(
            "installed", "PyTorch", f"does not load: {error}", "pip install torch==2.13.0"
        )
    if not torch.cuda.is_available():
        return ok("installed", "GPU", "none that this PyTorch can use; Baton computes on the CPU")
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return warning(
        "installed",
        "GPU",
        f"{names}, not used: Baton has no CUDA backend yet",
        "nothing to do; it computes on the CPU",
    )


def trial() -> Finding:
    """Check the trial model, which `baton serve` takes if no model is named."""
    from baton.cli.models import TRIAL, is_complete, trial_directory

    if is_complete(trial_directory()):
        return ok("installed", "trial model", str(trial_directory()))
    return ok("installed", "trial model", "not here yet", f"baton models pull {TRIAL}")
