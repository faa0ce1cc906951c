"""The engine as a worker builds it: the same bits in any company, transformers' tokens, threads
that end."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tests.engine.test_models import truth
from tests.engine.whole import GREEDY, PATIENCE_S, B, Recorder, Request, Rig
from tests.tiny import make_tiny

from baton.core.handoff import seal
from baton.core.ids import BlockIndex
from baton.core.memory.state import DType, Unit
from baton.core.messages import Sampling
from baton.core.work import BatchDone, DigestDone, DigestOrder, Job, Row, RowDone
from baton.engine import onednn
from baton.engine.attention.interface import Attend
from baton.engine.models.base import KV
from baton.engine.trial import default_directory

WARM = Sampling(temperature=0.9, top_p=0.95, top_k=40, seed=11, logprobs=5)
# The widths of SmolLM2: matrix products choose their kernels by shape.
WIDE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
}
WIDE_LATENT = {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 2,
    "q_lora_rank": 192,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "head_dim": 32,
    "v_head_dim": 64,
    "moe_intermediate_size": 256,
}
WIDE_SLOTS = {
    "hidden_size": 512,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "moe_intermediate_size": 256,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "wide": ("llama", WIDE),
    "windows": ("gemma3", {}),
    "sinks": ("gpt_oss", {}),
    "experts": ("qwen3_moe", {}),
    "latent, by softmax": ("deepseek_v2", {"q_lora_rank": None}),
    "latent": ("deepseek_v3", {}),
    "wide latent": ("deepseek_v3", WIDE_LATENT),
    "sparse": ("deepseek_v32", {}),
    "sparse, shared": ("glm_moe_dsa", {"indexer_types": ["full", "shared", "full"]}),
    "slots": ("qwen3_5", {}),
    "slots, experts": ("qwen3_next", {}),
    "wide slots": ("qwen3_next", WIDE_SLOTS),
}
PLAIN = ("tiny", "qwen3", "wide")
COMPANIES = [
    *(
        (shape, dtype, n)
        for shape in PLAIN
        for dtype in (DType.F32, DType.BF16, DType.F16)
        for n in (1, 2)
    ),
    *(
        (shape, dtype, 1)
        for shape in SHAPES
        if shape not in PLAIN
        for dtype in (DType.F32, DType.BF16)
    ),
    *((shape, DType.F32, 2) for shape in ("wide latent", "wide slots")),
]
# Where oneDNN multiplies bfloat16 without tiles (AVX-512 BF16), the order in which it adds up depends
# on the number of rows.
SAME_BITS = pytest.mark.skipif(
    onednn.multiplies(torch.bfloat16) and not onednn.has_tiles(torch.bfloat16),
    reason="a row's bits depend on the number of rows",
)


class Models(dict[str, Path]):
    """A checkpoint of each shape, made when it is first asked for."""

    def __init__(self, under: Path) -> None:
        super().__init__()
        self._under = under

    def __missing__(self, name: str) -> Path:
        family, more = SHAPES[name]
        self[name] = make_tiny(self._under / name.replace(" ", "-"), family, **more)
        return self[name]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def rigs() -> Iterator[list[Rig]]:
    """Closed after the test."""
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.close()


def requests(count: int, *, length: Sequence[int] = (21, 5, 33, 16, 1, 47)) -> list[Request]:
    """Prompts of several lengths on scattered pages of one block; half of them drawn at random."""
    chance = np.random.default_rng(count)
    pages = chance.permutation(64).tolist()
    made = []
    for i in range(count):
        prompt = chance.integers(0, 250, length[i % len(length)]).tolist()
        own = [pages.pop() for _ in range(-(-(len(prompt) + 1) // B))]
        made.append(Request(i, prompt, own, replace(WARM, seed=i) if i % 2 else GREEDY))
    return made


def answers(rig: Rig, rows: int) -> torch.Tensor:
    """The last batch's logits, without padding."""
    assert isinstance(rig.model, Recorder)
    return rig.model.answers[-1][:rows].clone()


# ---- in any company -----------------------------------------------------------------------------


def sealed(rig: Rig, request: Request) -> Row:
    """The prompt at once, and the sums of all its state."""
    row = request.whole()
    groups = {group.name: group.unit for group in rig.placement.table.groups}
    whole = (BlockIndex(0), BlockIndex(1))
    return replace(
        row,
        final={
            name: row.final[KV] if unit is Unit.PAGE else whole for name, unit in groups.items()
        },
    )


@pytest.mark.parametrize(("shape", "dtype", "threads"), COMPANIES)
def test_a_request_has_the_same_bits_alone_and_among_sixteen(
    models: Mapping[str, Path], rigs: list[Rig], shape: str, dtype: DType, threads: int
) -> None:
    rig = Rig(models[shape], dtype=dtype, threads=threads)
    rigs.append(rig)
    all_ = requests(16)
    together, batch = rig.run([sealed(rig, r) for r in all_]), answers(rig, 16)
    decoded = rig.run([r.next(d.drawn.token, 1) for r, d in zip(all_, together, strict=True)])
    next_batch = answers(rig, 16)
    for i, request in enumerate(all_):
        alone = rig.run([sealed(rig, request)])[0]
        assert torch.equal(answers(rig, 1)[0], batch[i]), f"logits of request {i}"
        assert alone.drawn == together[i].drawn
        assert alone.sums.keys() == together[i].sums.keys() == set(rig.pools)
        for group, sums in alone.sums.items():
            assert np.array_equal(sums, together[i].sums[group]), (
                f"sealed state of request {i}: {group}"
            )
        step = rig.run([request.next(alone.drawn.token, 1)])[0]
        assert torch.equal(answers(rig, 1)[0], next_batch[i]), f"logits of request {i}, decoding"
        assert step.drawn == decoded[i].drawn


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("shape", ["wide", "experts", "wide latent", "sparse", "wide slots"])
def test_a_decode_step_has_the_same_bits_at_every_batch_size(
    models: Mapping[str, Path], rigs: list[Rig], shape: str, dtype: DType
) -> None:
    rig = Rig(models[shape], dtype=dtype)
    rigs.append(rig)
    all_ = requests(20, length=(29,))
    tokens = [d.drawn.token for d in rig.run([r.whole() for r in all_])]
    # a step brings a slot forward
    before = {group: pool.array.copy() for group, pool in rig.pools.items()}
    steps = [r.next(t, 1) for r, t in zip(all_, tokens, strict=True)]
    rig.run(steps)
    expected = answers(rig, 20)
    for size in range(1, 20):
        for group, pool in rig.pools.items():
            pool.array[:] = before[group]
        rig.run(steps[20 - size :])
        assert torch.equal(answers(rig, size), expected[20 - size :]), f"batch of {size}"


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *(pytest.param(shape, DType.BF16, marks=SAME_BITS) for shape in SHAPES),
        *((shape, DType.F32) for shape in ("wide", "wide latent", "wide slots")),
    ],
)
def test_what_was_generated_has_the_same_bits_when_it_is_computed_as_a_prompt(
    models: Mapping[str, Path], rigs: list[Rig], shape: str, dtype: DType
) -> None:
    """So an answer that goes on at another worker is the same in 16 bits, too."""
    rig = Rig(models[shape], dtype=dtype)
    rigs.append(rig)
    pages = np.random.default_rng(1).permutation(64).tolist()
    first = Request(1, requests(1, length=(37,))[0].prompt, pages[:8])
    tokens = [rig.run([first.whole()])[0].drawn.token]
    logits = [answers(rig, 1)[0]]
    for n in range(1, 22):
        tokens.append(rig.run([first.next(tokens[-1], n)])[0].drawn.token)
        logits.append(answers(rig, 1)[0])
    for said in (1, 6, 21):
        again = Request(2, first.prompt + tokens[:said], pages[8:16])
        rig.run([again.chunk(0, len(again.prompt), said=said)])
        assert torch.equal(answers(rig, 1)[0], logits[said]), f"after {said} tokens"


DRAFTS = [1, 0, 1, 1, 1, 1, 0, 1, 1]  # whether a draft is right


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        pytest.param(shape, dtype, marks=[SAME_BITS] * (dtype is DType.BF16))
        for shape in SHAPES
        for dtype in (DType.F32, DType.BF16)
        if not (shape.endswith("slots") or shape.startswith("slots"))
    ],
)
@pytest.mark.parametrize("sampling", [GREEDY, replace(WARM, seed=3, logprobs=2)])
def test_tokens_with_drafts_are_those_without_whatever_is_drafted(
    models: Mapping[str, Path], rigs: list[Rig], shape: str, dtype: DType, sampling: Sampling
) -> None:
    """Right ones and wrong ones, over the borders of blocks, and over what wrong ones have left."""
    rig = Rig(models[shape], dtype=dtype)
    rigs.append(rig)
    pages = np.random.default_rng(1).permutation(64).tolist()
    prompt = requests(1, length=(37,))[0].prompt
    first, again = (
        Request(1, prompt, pages[:8], sampling),
        Request(2, prompt, pages[8:16], sampling),
    )
    said = [rig.run([first.whole()])[0].drawn]
    for n in range(1, 40):
        said.append(rig.run([first.next(said[-1].token, n)])[0].drawn)
    found = [rig.run([again.whole()])[0].drawn]
    for step, count in enumerate((3, 1, 5, 0, 8, 2, 6, 9)):
        at = len(found)
        right = [DRAFTS[(step + n) % len(DRAFTS)] for n in range(count)]
        drafts = [
            said[at + n].token if right[n] else (said[at + n].token + 1) % 250 for n in range(count)
        ]
        (row,) = rig.run([again.guessed([found[-1].token, *drafts], at)])
        accepted = right.index(0) if 0 in right else count
        assert len(row.more) == accepted, f"step {step}"
        found += [row.drawn, *row.more]
        assert found == said[: len(found)], f"step {step}"
    assert len(found) >= 20


# ---- transformers' tokens -----------------------------------------------------------------------


def generated(path: Path, prompt: Sequence[int], count: int) -> list[int]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):  # no cache: what their own cache might get wrong does not matter
            tokens.append(
                int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax())
            )
    return tokens[len(prompt) :]


def ours(rig: Rig, request: Request, cuts: Sequence[int], count: int) -> list[int]:
    start = 0
    for end in cuts:
        rig.run([request.chunk(start, end, draw=False)])
        start = end
    tokens = [rig.run([request.chunk(start, len(request.prompt))])[0].drawn.token]
    while len(tokens) < count:
        tokens.append(rig.run([request.next(tokens[-1], len(tokens))])[0].drawn.token)
    return tokens


@pytest.mark.parametrize("page_blocks", [1, 3])
@pytest.mark.parametrize("shape", ["tiny", "qwen3"])
def test_greedy_tokens_are_those_of_transformers(
    models: Mapping[str, Path], rigs: list[Rig], shape: str, page_blocks: int
) -> None:
    rig = Rig(models[shape], page_blocks=page_blocks)
    rigs.append(rig)
    prompt = np.random.default_rng(8).integers(0, 250, 37).tolist()
    expected = generated(models[shape], prompt, 24)
    assert len(set(expected)) > 3  # not a model that repeats itself
    for number, cuts in enumerate([[], [16], [3, 20, 36]]):
        pages = np.random.default_rng(number).permutation(64)[:6].tolist()
        assert ours(rig, Request(number, prompt, pages), cuts, 24) == expected


class Guest:
    """A request that comes at a step of its own, is computed in chunks and says some tokens."""

    def __init__(self, number: int, prompt: list[int], pages: list[int], *, chunk: int) -> None:
        self._request, self._chunk, self._done, self.prompt = (
            Request(number, prompt, pages),
            chunk,
            0,
            prompt,
        )
        self.tokens: list[int] = []

    def row(self) -> Row:
        """What it adds to the next batch."""
        if self.tokens:
            return self._request.next(self.tokens[-1], len(self.tokens))
        end = min(self._done + self._chunk, len(self.prompt))
        return self._request.chunk(self._done, end, draw=end == len(self.prompt))

    def take(self, done: RowDone) -> None:
        """What came of it."""
        self._done += self._chunk
        if done.drawn is not None:
            self.tokens.append(done.drawn.token)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if "wide" not in shape])
def test_tokens_are_those_of_transformers_while_others_come_and_go(
    models: Mapping[str, Path], rigs: list[Rig], shape: str
) -> None:
    """Batches of steps and chunks of prompts; pages and slots pass from those who have gone to
    those who come."""
    rig, chance, said = Rig(models[shape], pages=24), np.random.default_rng(3), 14
    rigs.append(rig)
    free = chance.permutation(24).tolist()
    coming = [
        (chance.integers(0, 250, n).tolist(), chunk)
        for n in (9, 40, 1, 33, 17, 28, 5, 37, 22)
        for chunk in (6, 13)
    ]
    here: dict[int, tuple[Guest, list[int]]] = {}
    gone: list[Guest] = []
    for step in range(400):
        if coming and len(free) >= 4 and step % 3 == 0:
            pages, (prompt, chunk) = [free.pop() for _ in range(4)], coming.pop()
            here[step] = (Guest(step, prompt, pages, chunk=chunk), pages)
        if not here:
            break
        guests = [guest for guest, _ in (here.values() if step % 2 else reversed(here.values()))]
        for guest, done in zip(guests, rig.run([guest.row() for guest in guests]), strict=True):
            guest.take(done)
        for number in [n for n, (guest, _) in here.items() if len(guest.tokens) == said]:
            guest, pages = here.pop(number)
            gone.append(guest)
            free[:0] = pages
    assert len(gone) == 18
    for guest in gone:
        _, logits = truth(models[shape], [*guest.prompt, *guest.tokens])
        assert logits[len(guest.prompt) - 1 : -1].argmax(-1).tolist() == guest.tokens


def test_the_trial_model_says_what_transformers_says(rigs: list[Rig]) -> None:
    path = default_directory()
    if not (path / "config.json").is_file():
        pytest.skip("the trial model is not here; baton models pull smollm2")
    from tokenizers import Tokenizer

    rig = Rig(path)
    rigs.append(rig)
    prompt = (
        Tokenizer.from_file(str(path / "tokenizer.json")).encode("The capital of France is").ids
    )
    assert ours(rig, Request(0, prompt, [5, 2, 9]), [2], 6) == generated(path, prompt, 6)


# ---- seal, digest, threads ----------------------------------------------------------------------


def test_the_compiled_seal_at_birth_is_the_reference_over_the_pools_bytes(
    models: Mapping[str, Path], rigs: list[Rig]
) -> None:
    rig = Rig(models["qwen3"], dtype=DType.BF16, page_blocks=2, pages=32)
    rigs.append(rig)
    request = Request(0, list(range(100, 137)), [7, 3])  # 37 tokens: blocks 14, 15 and 6
    done = rig.run([request.whole()])[0]
    slots, numbers = np.array([14, 15, 6]), np.arange(3)
    expected = seal.block_sums(rig.bytes, rig.placement, KV, slots, numbers, rig.identity)
    assert np.array_equal(done.sums[KV], expected)
    rig.bytes[6 * rig.placement.block_bytes(KV)] ^= 1
    rig.engine.digest(DigestOrder(Job(4), KV, slots, numbers))
    (seen,) = rig.wait()
    assert isinstance(seen, DigestDone)
    assert (seen.sums != expected).any(axis=1).tolist() == [False, False, True]


@pytest.mark.parametrize("count", [0, 1, 64, 65, 150])
def test_a_digest_of_any_length_comes_back_whole_and_in_order(
    models: Mapping[str, Path], rigs: list[Rig], count: int
) -> None:
    rig = Rig(models["tiny"])
    rigs.append(rig)
    slots, numbers = np.arange(count) * 7 % 64, np.arange(count)
    rig.engine.digest(DigestOrder(Job(9), KV, slots, numbers))
    (done,) = rig.wait()
    assert isinstance(done, DigestDone)
    assert done.job == 9
    expected = seal.block_sums(rig.bytes, rig.placement, KV, slots, numbers, rig.identity)
    assert done.sums.shape == expected.shape
    assert np.array_equal(done.sums, expected)


class Gated:
    """A model that computes nothing until it may, and then fails if told to."""

    vocab_size = 320

    def __init__(self, failure: BaseException | None = None) -> None:
        self.open, self.entered, self._failure = threading.Event(), threading.Event(), failure

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        self.entered.set()
        assert self.open.wait(PATIENCE_S)
        if self._failure is not None:
            raise self._failure
        return torch.zeros(len(tokens), 64)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(hidden), self.vocab_size)


def test_digests_do_not_wait_for_a_batch(models: Mapping[str, Path], rigs: list[Rig]) -> None:
    model = Gated()
    rig = Rig(models["tiny"], model=model)
    rigs.append(rig)
    rig.submit([Request(0, [1, 2], [0]).chunk(0, 2)])
    assert model.entered.wait(PATIENCE_S)
    rig.engine.digest(DigestOrder(Job(1), KV, np.array([0]), np.array([0])))
    assert [type(done) for done in rig.wait()] == [DigestDone]
    model.open.set()
    assert [type(done) for done in rig.wait()] == [BatchDone]


class Broken(Exception):
    """What a test's model raises."""


def test_a_failure_of_compute_wakes_and_is_raised(
    models: Mapping[str, Path], rigs: list[Rig]
) -> None:
    model = Gated(Broken("no memory"))
    model.open.set()
    rig = Rig(models["tiny"], model=model)
    rigs.append(rig)
    rig.submit([Request(0, [1, 2], [0]).chunk(0, 2)])
    with pytest.raises(Broken, match="no memory"):
        rig.wait()
    assert rig.engine.poll() == []  # raised once; and the process is expected to end


def test_a_failure_of_a_digest_wakes_and_is_raised(
    models: Mapping[str, Path], rigs: list[Rig]
) -> None:
    rig = Rig(models["tiny"])
    rigs.append(rig)
    rig.engine.digest(DigestOrder(Job(1), KV, np.array([64]), np.array([0])))  # one past the pool
    with pytest.raises(Exception, match="outside the pool"):
        rig.wait()


def baton_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("baton-")}


@pytest.mark.parametrize("failed", [False, True])
def test_closing_ends_the_threads_after_what_was_queued(
    models: Mapping[str, Path], failed: bool
) -> None:
    before = baton_threads()
    model = Gated(Broken("x") if failed else None)
    rig = Rig(models["tiny"], model=model)
    assert len(baton_threads() - before) == 2
    for n in range(3):
        rig.submit([Request(n, [1, 2], [n]).chunk(0, 2)])
    model.open.set()
    rig.engine.close()
    assert baton_threads() <= before
    rig.engine.close()
    rig.close()
