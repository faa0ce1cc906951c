"""A request goes where its beginning is: conversations over two prefill and two decode workers."""

import time
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.service import Service

PAGE = 64
CONVERSATIONS, TURNS, OPENING, QUESTION, ANSWER = 5, 3, 3 * PAGE, 41, 4
TOLD_S = 0.1  # by then a gateway knows what a worker has cached, many times over


def some(n: int, seed: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 250, n)]


@pytest.mark.timeout(300)
def test_every_turn_of_a_conversation_finds_what_the_last_one_computed(
    tmp_path: Path, tiny: Path
) -> None:
    """They take turns, so that workers with as few open requests as any other are found in vain."""
    service = Service(tmp_path, tiny)
    prompts = [some(OPENING, n) for n in range(CONVERSATIONS)]
    fresh = [0] * CONVERSATIONS
    try:
        service.start_gateway()
        for n in range(2):
            service.start_worker("prefill", name=f"prefill-{n}")
            service.start_worker("decode", name=f"decode-{n}")
        service.wait_ready()
        for turn in range(TURNS):
            for n, prompt in enumerate(prompts):
                known = fresh[n]
                prompt += some(QUESTION, 100 * turn + n)
                fields = {"max_tokens": ANSWER, "ignore_eos": True}
                answer = service.complete(prompt, **fields)
                assert answer.status_code == 200, answer.text
                said = answer.json()
                cached = said["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached >= known, f"turn {turn} of conversation {n}"
                fresh[n] = (len(prompt) - 1) // PAGE * PAGE
                prompt += said["choices"][0]["token_ids"]
                time.sleep(TOLD_S)
        workers = service.ledger()["workers"]
        used = [w["name"] for w in workers if any(g["cached"] for g in w["pages"].values())]
        assert len(used) == 4, f"the caches of all workers are used, and not only of {used}"
    finally:
        service.close()
