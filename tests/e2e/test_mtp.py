"""The draft layer between real processes: answers are the same with it and without, and its state
is handed over bit for bit."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.fleet import GREEDY, Fleet, Layout, pools_of
from tests.e2e.landings import landed
from tests.e2e.nursery import Nursery
from tests.e2e.reference import Reference
from tests.e2e.service import Service, wait_for
from tests.tiny import LATENT, make_tiny_with_draft_layer

from baton.core.messages import Sampling
from baton.ports.speculative_config import SpeculativeConfig
from baton.shell.settings import Role

L = Layout
ANSWER, AT_ONCE = 40, 8
ROUNDS = 12  # at most: whether a draft is tried depends on how fast steps are
ENOUGH = 30  # tokens that were drafted
MTP = SpeculativeConfig(method="mtp", num_speculative_tokens=2)
OFF = SpeculativeConfig()
BLOCK, HIDDEN, LAYERS, KEY = 16, 64, 3, 28
KV_HEADS, HEAD = 2, 16  # of models without latent rows


def prompts() -> list[list[int]]:
    """Some begin with the same tokens, more than a page of them."""
    same = np.random.default_rng(4).integers(0, 250, 20).tolist()
    return [
        [*(same if n % 2 else []), *np.random.default_rng(n).integers(0, 250, 12 + 3 * n).tolist()]
        for n in range(AT_ONCE)
    ]


def seeded(number: int) -> Sampling:
    return Sampling(temperature=0.8, top_p=0.9, top_k=0, seed=number, logprobs=None)


def answers(fleet: Fleet, source: Layout, target: Layout, sampled: bool) -> list[list[int]]:
    pair = fleet.pair(source, target)
    begun = [
        fleet.begin(pair, prompt, ANSWER, sampling=seeded(n) if sampled else GREEDY)
        for n, prompt in enumerate(prompts())
    ]
    return [fleet.answer(request) for request in begun]


def counted_by(fleet: Fleet) -> tuple[int, int]:
    """Tokens that decode has drafted, and how many were accepted."""
    (found,) = [v.speculation for v in fleet.books() if v.role == Role.DECODE.value]
    return found.tokens, sum(found.accepted)


@pytest.mark.parametrize(
    ("family", "source", "target", "right"),
    [
        ("deepseek_v3", L(1), L(2), True),
        ("deepseek_v3", L(4), L(1), False),
        ("qwen3_next", L(1), L(2), True),
        ("qwen3_5", L(2), L(1), False),
        pytest.param("qwen3_5_moe", L(4), L(2), True, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", L(2), L(4), True, marks=pytest.mark.slow),
        pytest.param("deepseek_v32", L(2), L(1), True, marks=pytest.mark.slow),
        pytest.param("glm_moe_dsa", L(1), L(1), True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(400)
def test_answers_are_the_same(
    tmp_path: Path, nursery: Nursery, family: str, source: Layout, target: Layout, right: bool
) -> None:
    """Greedy and seeded, in pools that are too small for all at once, and with cached prompts."""
    path = make_tiny_with_draft_layer(tmp_path / "model", family, right=right)
    reference = Reference(path)
    due = [reference.answer(prompt, ANSWER) for prompt in prompts()]
    said: dict[str, list[list[int]]] = {}
    for name, speculative in (("off", OFF), ("on", MTP)):
        fleet = Fleet(
            nursery,
            tmp_path / name,
            path,
            {Role.PREFILL: (source,), Role.DECODE: (target,)},
            pages=14,
            max_model_len=256,
            prefix_caching=True,
            host_kv_bytes=1 << 24,
            speculative=speculative,
        )
        try:
            said[name] = answers(fleet, source, target, sampled=True)
            fleet.settle()
            before = counted_by(fleet)
            for _ in range(ROUNDS):
                assert answers(fleet, source, target, sampled=False) == due
                fleet.settle()
                tokens, accepted = (b - a for a, b in zip(before, counted_by(fleet), strict=True))
                if speculative is OFF or not right or tokens >= ENOUGH:
                    break
            views = {v.role: v for v in fleet.books()}
            events = views[Role.DECODE.value].counters.events
            assert events.get("offloaded", 0) > 0, "some gave way"
            if not family.startswith("qwen"):  # whose prompts begin with none of these
                assert views[Role.PREFILL.value].counters.events["reused"] > 0
            assert (sum(counted_by(fleet)) > 0) == (speculative is MTP)
            if speculative is MTP and right:
                assert accepted > tokens / 2, (accepted, tokens)
        finally:
            fleet.close()
    assert said["on"] == said["off"]


def rows_of(pool: np.ndarray, layers: int, blocks: int, *, indexed: bool) -> list[np.ndarray]:
    """uint32 [positions, row] of each kind of row of the draft layer, from the first page on: its
    latent rows and its index keys. It is the last layer."""
    latent = LATENT["kv_lora_rank"] + LATENT["qk_rope_head_dim"]
    widths = [latent] * layers + [KEY] * layers * indexed
    words = pool.view(np.uint32)[: blocks * BLOCK * sum(widths)].reshape(blocks, -1)
    parts = np.split(words, np.cumsum([BLOCK * width for width in widths])[:-1], axis=1)
    kept = [parts[layers - 1], *([parts[-1]] if indexed else [])]
    return [part.reshape(blocks * BLOCK, -1) for part in kept]


@pytest.mark.parametrize("family", ["deepseek_v3", "deepseek_v32"])
@pytest.mark.timeout(400)
def test_its_state_goes_between_any_layouts_bit_for_bit(
    tmp_path: Path, nursery: Nursery, family: str
) -> None:
    """The draft layer's rows and the last hidden state are on every rank what prefill has."""
    path = make_tiny_with_draft_layer(tmp_path / "model", family)
    (copies := tmp_path / "landed").mkdir()
    sources, targets = (L(1), L(4, page=64)), (L(1, page=64), L(2))
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        path,
        {Role.PREFILL: sources, Role.DECODE: targets},
        speculative=MTP,
        hurt={(Role.DECODE, layout): {"landings": str(copies)} for layout in targets},
    )
    try:
        for number, (source, target) in enumerate(product(sources, targets)):
            length = (3 * BLOCK, 1, BLOCK + 5, 5 * BLOCK - 1)[number]
            fleet.clear()
            prompt = np.random.default_rng(number).integers(0, 250, length).tolist()
            fleet.answer(fleet.begin(fleet.pair(source, target), prompt, 3))
            fleet.settle()
            theirs = [pools_of(pid) for pid in fleet.pids(Role.PREFILL, source)]
            ours = [
                [landed(copies, pid, group) for group in ("full", "draft")]
                for pid in fleet.pids(Role.DECODE, target)
            ]
            assert (len(theirs), len(ours)) == (source.tp, target.tp)
            blocks = -(-length // BLOCK)
            found = []
            for full, draft in (*theirs, *ours):
                slots = draft.view(np.uint32).reshape(-1, HIDDEN)
                (used,) = np.flatnonzero(slots.any(axis=1))
                rows = rows_of(full, LAYERS + 1, blocks, indexed=family == "deepseek_v32")
                assert all(kind[:length].any(axis=1).all() for kind in rows)
                found.append([slots[used], *(kind[:length] for kind in rows)])
            for other in found[1:]:
                for a, b in zip(found[0], other, strict=True):
                    assert np.array_equal(a, b), f"{length}: {source} -> {target}"
    finally:
        fleet.close()


@pytest.mark.parametrize(("source", "target"), [(L(1), L(2)), (L(2), L(1))])
@pytest.mark.timeout(200)
def test_beside_recurrent_state_it_is_handed_over_too(
    tmp_path: Path, nursery: Nursery, source: Layout, target: Layout
) -> None:
    """K and V of the draft layer, which attends like the last layer of four, by head."""
    path = make_tiny_with_draft_layer(tmp_path / "model", "qwen3_next")
    (copies := tmp_path / "landed").mkdir()
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        path,
        {Role.PREFILL: (source,), Role.DECODE: (target,)},
        speculative=MTP,
        hurt={(Role.DECODE, target): {"landings": str(copies)}},
    )
    length = 2 * BLOCK + 5
    try:
        prompt = np.random.default_rng(7).integers(0, 250, length).tolist()
        fleet.answer(fleet.begin(fleet.pair(source, target), prompt, 3))
        fleet.settle()
        theirs = [pools_of(pid) for pid in fleet.pids(Role.PREFILL, source)]
        ours = [
            [landed(copies, pid, group) for group in ("full", "slot", "draft")]
            for pid in fleet.pids(Role.DECODE, target)
        ]
        found = []
        for layout, ranks in ((source, theirs), (target, ours)):
            shape = (-1, KV_HEADS // layout.tp, 2, 2, BLOCK, HEAD)
            blocks = [
                full.view(np.uint32).reshape(shape)[: -(-length // BLOCK)] for full, *_ in ranks
            ]
            rows = np.concatenate(blocks, axis=1)[:, :, 1]  # [block, head, part, position, row]
            rows = np.concatenate(list(rows), axis=2)[:, :, :length]
            assert rows.any(axis=3).all()
            hidden = []
            for *_, draft in ranks:
                slots = draft.view(np.uint32).reshape(-1, HIDDEN)
                (used,) = np.flatnonzero(slots.any(axis=1))
                hidden.append(slots[used])
            found.append((rows, hidden))
        assert np.array_equal(found[0][0], found[1][0])
        assert all(np.array_equal(found[0][1][0], other) for _, rest in found for other in rest)
    finally:
        fleet.close()


@pytest.mark.timeout(300)
def test_an_answer_goes_on_after_its_decode_worker_was_killed(tmp_path: Path) -> None:
    path = make_tiny_with_draft_layer(tmp_path / "model", right=True)
    prompt, count = prompts()[3], 200
    due = Reference(path).answer(prompt, count)
    flags = ("--speculative-config", '{"method": "mtp"}', "--kv-pages", "60", "--page-size", "16")
    service = Service(tmp_path, path)
    try:
        service.start_gateway()
        service.start_worker("prefill", *flags)
        for name in ("decode-a", "decode-b"):
            service.start_worker("decode", *flags, name=name)
        service.wait_ready()
        body = {"model": "m", "prompt": prompt, "temperature": 0, "return_token_ids": True}
        body |= {"stream": True, "max_tokens": count, "ignore_eos": True}
        said: list[int] = []
        killed = False
        with service.http.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    said += choice.get("token_ids") or []
                if len(said) > 10 and not killed:
                    killed = True
                    workers = service.ledger()["workers"]
                    (busy,) = [w["name"] for w in workers if w["role"] == "decode" and w["rooms"]]
                    service.processes[busy].kill()
        assert killed
        assert said == due
        service.wait_clean(30.0)
    finally:
        service.close()


@pytest.mark.timeout(200)
def test_a_pair_of_which_one_has_the_layer_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = make_tiny_with_draft_layer(tmp_path / "model")
    service = Service(tmp_path, path)
    try:
        service.start_gateway()
        service.start_worker("prefill")
        service.start_worker("decode", "--speculative-config", '{"method": "mtp"}')
        wait_for(
            lambda: "--speculative-config" in service.why_not_ready(),
            seconds=60,
            why="the pair refused with its remedy",
        )
        assert "table.num_layers differs: ours is 4, theirs is 3" in service.why_not_ready()
    finally:
        service.close()
