"""`baton fabric check`: which memory it takes, and what it refuses before anything starts."""

import pytest

from baton.adapters import cuda_driver
from baton.cli.main import run
from baton.core.errors import ConfigError
from baton.core.memory.kinds import HOST, CudaMemory, MemoryKind, memory_named


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("host", HOST),
        ("cuda", CudaMemory(0)),
        ("cuda:0", CudaMemory(0)),
        ("cuda:12", CudaMemory(12)),
    ],
)
def test_memory_has_the_names_that_pytorch_gives_devices(name: str, memory: MemoryKind) -> None:
    assert memory_named(name) == memory


@pytest.mark.parametrize("name", ["", "cuda0", "cuda:", "cuda:-1", "cuda:1x", "gpu", "HOST"])
def test_other_names_are_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"names no memory: say host, or cuda:N"):
        memory_named(name)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tcp", "--memory", "cuda0"], "'cuda0' names no memory"),
        (["nixl", "--memory", "cuda:0"], "CUDA: no driver on this machine"),
    ],
)
def test_it_says_what_is_missing_before_it_starts_a_process(
    argv: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libno-such-driver.so.1")
    assert run(["fabric", "check", *argv]) == 2
    found = capsys.readouterr()
    assert said in found.err
    assert found.out == ""
