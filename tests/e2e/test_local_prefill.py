"""`--local-prefill auto`: a decode worker computes prompts itself where that is cheaper, and where no
prefill worker is left."""

from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.reference import Reference
from tests.e2e.service import Service, split, wait_for
from tests.tiny import make_tiny

AUTO = ("--local-prefill", "auto")
PAGE, TOKENS = 64, 12


def some(n: int, seed: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 250, n)]


def computed(service: Service, role: str) -> int:
    """How many prompts a worker has computed, as the metrics say."""
    families = text_string_to_metric_families(service.http.get("/metrics").text)
    phases = next(family for family in families if family.name == "baton:phase_seconds")
    due = {"role": role, "state": "computing"}
    return sum(
        int(sample.value)
        for sample in phases.samples
        if sample.name.endswith("_count") and due.items() <= sample.labels.items()
    )


def ask(service: Service, prompt: list[int]) -> tuple[list[int], int]:
    """The answer, and how many of the prompt's tokens were cached."""
    answer = service.complete(prompt, max_tokens=TOKENS, ignore_eos=True)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    cached = said["usage"]["prompt_tokens_details"]["cached_tokens"]
    return list(said["choices"][0]["token_ids"]), cached


@pytest.mark.timeout(240)
def test_decode_computes_what_it_has_and_goes_on_alone(tmp_path: Path, tiny: Path) -> None:
    reference = Reference(tiny)
    with split(tmp_path, tiny, gateway=AUTO, prefill=("--fetch-back", "never")) as service:
        wait_for(lambda: computed_by_both(service), seconds=60, why="both compute prompts")
        prompt = some(3 * PAGE + 5, 7)
        for turn in range(3):
            said, cached = ask(service, prompt)
            assert said == reference.answer(prompt, TOKENS), f"turn {turn}"
            assert cached >= (len(prompt) - TOKENS - 40) // PAGE * PAGE or turn == 0
            prompt += [*said, *some(40, turn)]
        service.processes["prefill"].kill()
        before = computed(service, "decode")
        for n in range(3):
            prompt = some(2 * PAGE + n, 20 + n)
            said, _ = ask(service, prompt)
            assert said == reference.answer(prompt, TOKENS), f"alone, {n}"
        assert computed(service, "decode") >= before + 3
        service.wait_clean()


def computed_by_both(service: Service) -> bool:
    """Ask once more. With nothing else to do the two workers are as good as each other."""
    rng = np.random.default_rng()
    ask(service, [int(t) for t in rng.integers(0, 250, PAGE)])
    return all(computed(service, role) for role in ("prefill", "decode"))


@pytest.mark.timeout(240)
def test_without_it_decode_computes_nothing(tmp_path: Path, tiny: Path) -> None:
    with split(tmp_path, tiny) as service:
        for n in range(4):
            ask(service, some(PAGE, n))
        assert computed(service, "prefill") == 4
        assert computed(service, "decode") == 0


@pytest.mark.parametrize("family", ["gemma3", "qwen3_next"])
@pytest.mark.timeout(300)
def test_where_state_passes_decode_goes_on_from_where_its_answers_ended(
    tmp_path: Path, family: str
) -> None:
    """Of a model with windows or recurrent state. A chunk has more pages than a window touches, so
    that pools made for what a window sees would not hold it. Decode keeps the ends of answers
    though prefill fetches nothing back."""
    path = make_tiny(tmp_path / "model", family, num_hidden_layers=4)
    reference = Reference(path)
    flags = ("--fetch-back", "never", "--max-num-seqs", "1")
    with split(tmp_path, path, gateway=AUTO, prefill=flags, decode=(*flags, *AUTO)) as service:
        wait_for(lambda: computed_by_both(service), seconds=60, why="both compute prompts")
        prompt = some(3 * PAGE - 5, 7)
        for turn in range(3):
            said, cached = ask(service, prompt)
            assert said == reference.answer(prompt, TOKENS), f"turn {turn}"
            assert cached >= 3 * PAGE - 5 or turn == 0
            prompt += [*said, *some(40, turn)]
        service.processes["prefill"].kill()
        before, known = computed(service, "decode"), 0
        prompt = some(3 * PAGE + 5, 30)
        for turn in range(3):
            said, cached = ask(service, prompt)
            assert said == reference.answer(prompt, TOKENS), f"alone, turn {turn}"
            assert cached == known, f"alone, turn {turn}"
            known = len(prompt) + TOKENS - 1
            prompt += [*said, *some(40, turn)]
        assert computed(service, "decode") == before + 3
        service.wait_clean()
