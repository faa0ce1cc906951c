"""Scores of a prompt's tokens: those of transformers' logits over the whole prompt, however the
prompt is cut and divided over ranks."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from tests.engine.whole import B, Crew, Request, Rig
from tests.tiny import make_tiny
from transformers import AutoModelForCausalLM

from baton.core.ids import TokenId
from baton.core.prompt_scores import PromptScores, Score, TokenScore, joined
from baton.core.work import Row
from baton.engine import scorer
from baton.engine.scorer import POSITIONS

PROMPT = [(7 * i * i + 11 * i + 5) % 250 for i in range(2 * POSITIONS + 23)]
PAGES = range(3, 3 + -(-len(PROMPT) // B))
TOP = 3
CUTS = {"whole": [len(PROMPT)], "odd": [7, POSITIONS + 1, 1, len(PROMPT) - POSITIONS - 10, 1]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model", "qwen3")


@pytest.fixture(scope="module")
def logprobs(path: Path) -> torch.Tensor:
    """float32 [positions, vocab]."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([PROMPT])).logits[0], dim=-1)


@pytest.fixture(params=[(1, 1), (2, 1), (2, 2)], ids=["alone", "tp2", "tp2-pp2"])
def ranks(path: Path, request: pytest.FixtureRequest) -> Iterator[Rig | Crew]:
    tp, pp = request.param
    made = Rig(path) if tp * pp == 1 else Crew(path, tp=tp, pp=pp)
    yield made
    made.close()


def rows(sizes: Sequence[int]) -> Iterator[Row]:
    """The prompt in chunks of these sizes."""
    request, start = Request(1, PROMPT, PAGES), 0
    for size in sizes:
        end = start + size
        last = end == len(PROMPT)
        score = Score(TOP, None if last else TokenId(PROMPT[end]))
        yield msgspec.structs.replace(request.chunk(start, end, draw=last), score=score)
        start = end


def scores(ranks: Rig | Crew, sizes: Sequence[int]) -> list[TokenScore]:
    found = PromptScores(TOP)
    for row in rows(sizes):
        other = Request(2, [9, 8, 7], [0]).whole()  # in the same step, and scored by nobody
        done = ranks.run([other, row])
        assert done[0].scores is None
        assert (done[0].drawn is not None, done[1].drawn is not None) == (
            True,
            row.draw is not None,
        )
        assert done[1].scores is not None
        found = joined(found, done[1].scores)
    assert found.fits(len(PROMPT))
    return list(found.tokens())


@pytest.mark.parametrize("sizes", CUTS.values(), ids=CUTS)
def test_scores_are_those_of_transformers(
    ranks: Rig | Crew, logprobs: torch.Tensor, sizes: Sequence[int]
) -> None:
    found = scores(ranks, sizes)
    for at, (score, token) in enumerate(zip(found, PROMPT[1:], strict=True)):
        values = logprobs[at]
        assert score.logprob == pytest.approx(float(values[token]), abs=1e-4)
        assert score.rank == int((values > values[token]).sum()) + 1
        best = torch.topk(values, TOP)
        assert [t for t, _ in score.top] == best.indices.tolist()
        assert [p for _, p in score.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_prompt_of_one_token_has_no_scores(path: Path) -> None:
    rig = Rig(path)
    row = msgspec.structs.replace(Request(1, [5], [0]).whole(), score=Score(TOP, None))
    (done,) = rig.run([row])
    rig.close()
    assert done.scores == PromptScores(TOP)
    assert done.drawn is not None


def test_logits_are_computed_for_a_few_positions_at_a_time(path: Path) -> None:
    rig = Rig(path)
    rig.run(list(rows([len(PROMPT)])))
    rig.close()
    assert max(len(values) for values in rig.model.answers) == scorer.POSITIONS
