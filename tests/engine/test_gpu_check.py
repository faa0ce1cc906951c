"""`make gpu-check`, as far as a machine without a GPU can try it."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install 'baton-llm[cuda]'")

import gpu_check


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
    monkeypatch.setattr(gpu_check, "block_sums", _wrong)
    cpu = torch.device("cpu")
    golden = gpu_check.golden(cpu, gpu_check.cases()[:2])
    assert golden.passed is False
    assert golden.said == "2 cases; differ: f32 x 1, f32 x 3"
    random = gpu_check.random_bits("SmolLM2-135M", cpu, 1)
    assert random.passed is False
    assert random.said == "90 of 90 sums differ"


def test_what_a_step_has_not_written_yet_fails(monkeypatch):
    """On a CPU a step has ended when it has begun; here it begins when the sums are there."""
    cpu, nbytes = torch.device("cpu"), 1 << 21
    assert gpu_check.behind_a_step("SmolLM2-135M", cpu, nbytes).passed is True

    class Early:
        def __init__(self, memory_of, cache):
            self.sums = memory_of(torch.zeros_like(cache)).sums

        def fence(self):
            return lambda: None

    memory_of = gpu_check.memory_of
    monkeypatch.setattr(gpu_check, "memory_of", lambda cache: Early(memory_of, cache))
    assert gpu_check.behind_a_step("SmolLM2-135M", cpu, nbytes).passed is False
