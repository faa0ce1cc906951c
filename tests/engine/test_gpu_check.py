"""`make gpu-check`, as far as a machine without a GPU can try it."""

import pytest
import torch
from tests.core.handoff.seal_cases import cases

pytest.importorskip("triton", reason="Triton is not installed: pip install 'baton-llm[cuda]'")

from tools.gpu_check import __main__ as gpu_check
from tools.gpu_check import reads, seals

from baton.vllm.memory import memory_of


def test_without_a_device_it_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main() == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("no CUDA device: ")
    assert said.err.count("\n") == 1


def test_a_check_that_breaks_fails_and_the_others_go_on():
    def broken():
        raise RuntimeError("an illegal memory access was encountered")

    result = gpu_check.outcome(broken)
    assert result.passed is False
    assert "illegal memory access" in gpu_check.shown("x", result)


def _wrong(pool, placement, group, slots, *rest):
    return torch.zeros((len(slots), placement.unit_count(group)), dtype=torch.uint64)


def test_wrong_sums_fail(monkeypatch):
    monkeypatch.setattr(seals, "block_sums", _wrong)
    cpu = torch.device("cpu")
    golden = seals.golden(cpu, cases()[:2])
    assert golden.passed is False
    assert golden.said == "2 cases; differ: f32 x 1, f32 x 3"
    random = seals.random_bits("SmolLM2-135M", cpu, 1)
    assert random.passed is False
    assert random.said == "90 of 90 sums differ"


class Early:
    """The memory of a cache, whose sums are those of the time before the step."""

    def __init__(self, cache):
        self.sums, self.pool = memory_of(torch.zeros_like(cache)).sums, memory_of(cache).pool

    def fence(self):
        return lambda: None


def test_what_a_step_has_not_written_yet_fails(monkeypatch):
    """On a CPU a step has ended when it has begun; here it begins when the sums are there."""
    cpu, nbytes = torch.device("cpu"), 1 << 21
    assert seals.behind_a_step("SmolLM2-135M", cpu, nbytes).passed is True

    monkeypatch.setattr(seals, "memory_of", Early)
    assert seals.behind_a_step("SmolLM2-135M", cpu, nbytes).passed is False


def test_a_cache_is_handed_over_on_the_host_as_on_a_device():
    """The reading process is one, and NIXL is real; only the memory is the host's."""
    result = reads.handed_over("nixl", "SmolLM2-135M", torch.device("cpu"), 1 << 22)
    assert result.passed is True, result.said
    assert result.said.endswith("0 sums offered wrong, 0 of 990 landed wrong")


def test_a_cache_that_is_offered_before_its_step_has_ended_fails(monkeypatch):
    monkeypatch.setattr(reads, "memory_of", Early)
    result = reads.handed_over("nixl", "SmolLM2-135M", torch.device("cpu"), 1 << 22)
    assert result.passed is False
    assert result.said.endswith("990 sums offered wrong, 990 of 990 landed wrong")
