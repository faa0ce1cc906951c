"""`baton chaos`: what it refuses before it starts anything."""

import pytest

from baton.cli.main import run


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--kinds", "kill,burn"], "--kinds: 'burn' is none of kill, stop, restart, corrupt"),
        (["--victims", "clients"], "--victims: 'clients' is none of prefill, decode, gateway"),
        (["--leaving", "0.7", "--slow", "0.4"], "are more than all requests"),
        (["--kinds", "corrupt", "--victims", "gateway"], "a gateway has no pools"),
    ],
)
def test_what_cannot_be_is_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["chaos", *flags]) == 2
    assert said in capsys.readouterr().err
