"""What a secret's file means, beyond who gets through with it (tests/contract/test_control.py,
C6)."""

import os
from pathlib import Path

import pytest
import zmq

from baton.adapters.secret import load_secret, new_secret, too_open
from baton.core.errors import ConfigError

TEXT = "00112233445566778899aabbccddeeff" * 2


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_file_means_the_same_keys_in_every_version(tmp_path: Path) -> None:
    """Machines of one service are not upgraded at the same moment."""
    secret = load_secret(written(tmp_path / "secret", TEXT))
    assert secret.server.public == b"l>*-:FY/%KRLMJFSgpRI!QLlc[4M}XGn(8+aBYz9"
    assert secret.client.public == b"^)s-lhPuCeWfW}SuMA^&ntq:-:rNlh!GxQBghFMy"


def test_the_halves_of_each_pair_belong_together_and_the_pairs_differ(tmp_path: Path) -> None:
    new_secret(tmp_path / "secret")
    secret = load_secret(tmp_path / "secret")
    for pair in (secret.server, secret.client):
        assert zmq.curve_public(pair.private) == pair.public
    assert (
        len(
            {
                secret.server.public,
                secret.server.private,
                secret.client.public,
                secret.client.private,
            }
        )
        == 4
    )


@pytest.mark.parametrize("text", [TEXT + "\n", f"  {TEXT}\r\n\n", TEXT.upper()])
def test_a_copy_through_an_editor_is_the_same_secret(tmp_path: Path, text: str) -> None:
    assert load_secret(written(tmp_path / "copy", text)) == load_secret(
        written(tmp_path / "secret", TEXT)
    )


def test_every_byte_of_the_file_counts(tmp_path: Path) -> None:
    publics = set()
    for at in range(0, 64, 2):
        secret = load_secret(written(tmp_path / f"{at}", TEXT[:at] + "fe" + TEXT[at + 2 :]))
        publics |= {secret.server.public, secret.client.public}
    assert len(publics) == 64


def test_a_lax_umask_does_not_open_a_new_secret(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        new_secret(tmp_path / "secret")
    finally:
        os.umask(before)
    load_secret(tmp_path / "secret")


def test_a_new_secret_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="exists"):
        new_secret(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_a_large_file_is_refused_and_no_error_repeats_what_is_in_a_file(tmp_path: Path) -> None:
    for text in (TEXT * 1_000, TEXT[:-1], TEXT[:-2], TEXT[:-1] + "g"):
        with pytest.raises(ConfigError) as caught:
            load_secret(written(tmp_path / "secret", text))
        assert text[:16] not in str(caught.value)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_secret(tmp_path)


@pytest.mark.parametrize(
    ("mode", "owner", "reader", "wrong"),
    [
        (0o600, 1000, 1000, False),
        (0o400, 1000, 1000, False),
        (0o640, 1000, 1000, True),
        (0o440, 1000, 1000, True),
        (0o440, 0, 10001, False),  # a Secret of Kubernetes under fsGroup
        (0o640, 0, 10001, False),
        (0o660, 0, 10001, True),
        (0o444, 0, 10001, True),
        (0o440, 0, 0, True),
    ],
)
def test_only_a_file_that_root_lends_is_open_to_a_group(
    mode: int, owner: int, reader: int, wrong: bool
) -> None:
    assert too_open(mode, owner=owner, reader=reader) is wrong
