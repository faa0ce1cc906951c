"""The Dockerfile and compose.yaml: what they type is what the command takes."""

import re
from pathlib import Path

import yaml
from typer.main import get_command

from baton import __version__
from baton.cli.deploy.kubernetes import layout
from baton.cli.deploy.kubernetes.pods import USER
from baton.cli.flags import PREFIX
from baton.cli.main import commands

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SERVICE = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["baton"]
# keys of a service in the Compose Specification, as far as they are wanted here
KEYS = {"build", "image", "command", "environment", "ports", "user", "read_only", "cap_drop"}
KEYS |= {"security_opt", "tmpfs", "volumes", "healthcheck", "stop_grace_period", "restart"}
CHECK_KEYS = {"test", "interval", "timeout", "retries", "start_period", "start_interval"}


def test_compose_has_known_keys_alone():
    assert set(SERVICE) <= KEYS
    assert set(SERVICE["healthcheck"]) <= CHECK_KEYS


def test_variables_of_compose_are_flags():
    serve = get_command(commands("")).commands["serve"]
    known = {name for p in serve.params for name in [p.envvar] if name is not None}
    used = {name for name in SERVICE["environment"] if name.startswith(PREFIX)}
    assert len(used) == 3
    assert used <= known


def test_the_image_is_that_of_this_version_and_what_manifests_name():
    assert SERVICE["image"] == f"baton:{__version__}"
    assert f"docker build -t baton:{__version__} ." in DOCKERFILE


def test_what_is_written_goes_to_volumes():
    assert SERVICE["read_only"] is True
    assert f"ENV HOME={layout.HOME}\n" in DOCKERFILE
    assert f"mkdir -m 1777 {layout.HOME}\n" in DOCKERFILE, "any user may write there"
    assert SERVICE["volumes"] == [f"cache:{layout.HOME}"]
    assert SERVICE["tmpfs"] == ["/tmp"]


def test_the_image_runs_as_a_number_that_is_not_root():
    """Kubernetes compares the number where runAsNonRoot is set; it does not know names."""
    assert f"\nUSER {USER}:{USER}\n" in DOCKERFILE
    assert SERVICE["user"] == f"{USER}:{USER}"


def test_the_image_has_the_torch_that_is_tested():
    (pinned,) = re.findall(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert f" {pinned} " in DOCKERFILE


def test_what_is_copied_into_the_image_is_sent_to_the_build():
    sent = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert {name for line in copied for name in line.split()} == sent
    assert [name for name in sent if not (ROOT / name).exists()] == []
