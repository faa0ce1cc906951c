"""Workers of several ranks: the same tokens, logits and state as one rank has, each head and layer
where it belongs."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.test_models import UPPER, WINDOW, worst
from tests.engine.whole import Crew, Request, Rig, placement_of
from tests.tiny import make_tiny

from baton.core.errors import ConfigError
from baton.core.memory.state import DType, StateSpec, Unit
from baton.engine.attention.reference import pool_view
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Alone
from baton.engine.models import FAMILIES
from baton.engine.models.base import family_of
from baton.engine.models.llama import LlamaFamily
from baton.engine.ops import TorchOps
from baton.engine.shards import require_width

PROMPT, ANSWER = 37, 12
PAGES = [9, 3, 17, 4]
LAYERS = 4
TOLERANCE = 1e-4  # of the largest element: sums are made in another order
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "own head": ("llama", {"tie_word_embeddings": False}),
    "smollm3": ("smollm3", WINDOW | {"use_sliding_window": True}),
    "qwen2": ("qwen2", UPPER),
    "qwen3": ("qwen3", {}),
    "phi3": ("phi3", WINDOW),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 8}),
    "gemma3": ("gemma3", {}),
    "mixtral": ("mixtral", {}),
    "qwen3_moe": ("qwen3_moe", {"decoder_sparse_step": 2}),
    "deepseek_v2": ("deepseek_v2", {"q_lora_rank": None, "attention_bias": True}),
    "deepseek_v3": ("deepseek_v3", {}),
    "deepseek_v32": ("deepseek_v32", {}),
    "glm_moe_dsa": ("glm_moe_dsa", {"indexer_types": ["full", "shared", "full", "shared"]}),
    "qwen3_next": ("qwen3_next", {}),
    "qwen3_5": ("qwen3_5", {}),
    "qwen3_5_moe": ("qwen3_5_moe", {}),
}


def prompt() -> list[int]:
    return np.random.default_rng(4).integers(0, 300, PROMPT).tolist()


def answer(worker: Rig | Crew, request: Request) -> list[int]:
    """The prompt in chunks that end inside blocks, then token by token."""
    for start, end in pairwise([0, 7, 24, PROMPT]):
        (done,) = worker.run([request.chunk(start, end, draw=end == PROMPT)])
    tokens = [done.drawn.token]
    while len(tokens) < ANSWER:
        (done,) = worker.run([request.next(tokens[-1], len(tokens))])
        tokens.append(done.drawn.token)
    return tokens


def state(rig: Rig, spec: StateSpec) -> np.ndarray:
    """What a rank holds of the request: [heads, layers, parts, position, row], of a slot one
    position."""
    view = pool_view(rig.pools[spec.group], rig.placement, spec.name)
    if rig.placement.table.group(spec.group).unit is Unit.SLOT:
        return view[PAGES[0]].numpy()
    blocks = view[PAGES].numpy()
    return np.concatenate(list(blocks), axis=3)[..., : PROMPT + ANSWER - 1, :]


LAYOUTS = [(2, 1), (1, 2), (4, 1), (2, 2), (4, 2)]
QUICK = (
    {("llama", *layout) for layout in LAYOUTS[:4]}
    | {(model, 2, 2) for model in MODELS}
    | {("deepseek_v3", 4, 1), ("qwen3_5", 4, 1)}
)
CASES = [
    pytest.param(model, tp, pp, marks=() if (model, tp, pp) in QUICK else pytest.mark.slow)
    for model in MODELS
    for tp, pp in LAYOUTS
]


@pytest.mark.parametrize(("model", "tp", "pp"), CASES)
def test_a_worker_of_several_ranks_computes_what_one_rank_does(
    tmp_path: Path, model: str, tp: int, pp: int
) -> None:
    family, overrides = MODELS[model]
    path = make_tiny(tmp_path, family, num_hidden_layers=LAYERS, **overrides)
    alone, crew = Rig(path), Crew(path, tp=tp, pp=pp)
    request = Request(1, prompt(), PAGES)
    assert answer(alone, request) == answer(crew, request)
    for one, several in zip(alone.model.answers, crew.answers, strict=True):
        assert worst(several[0], one[0]) <= TOLERANCE
    for spec in alone.placement.table.specs:
        expected, held = state(alone, spec), {}
        for rank, rig in enumerate(crew.rigs):
            layers = [x for x in spec.layers if x * pp // LAYERS == rank // tp]
            if not layers:
                continue
            head = (rank % tp) * spec.heads // tp
            due = expected[head : head + max(1, spec.heads // tp)][
                :, [spec.layers.index(x) for x in layers]
            ]
            found = state(rig, spec)
            assert np.abs(found - due).max() <= TOLERANCE * np.abs(due).max()
            # Ranks that hold the same hold the same bits: which of them is read must not matter.
            assert np.array_equal(held.setdefault((head, layers[0]), found), found)
    alone.close()
    crew.close()


def test_batches_follow_each_other_through_the_stages(tmp_path: Path) -> None:
    """Chunks of one prompt and rows of two requests, all submitted before the first has ended."""
    path = make_tiny(tmp_path, num_hidden_layers=LAYERS)
    alone, crew = Rig(path), Crew(path, tp=1, pp=2)
    first, second = Request(1, prompt(), PAGES), Request(2, prompt()[::-1], [30, 31, 32, 33])
    batches = [
        [first.chunk(0, 16, draw=False)],
        [first.chunk(16, PROMPT), second.chunk(0, 5, draw=False)],
        [second.chunk(5, PROMPT)],
    ]
    expected = [alone.run(rows)[0].drawn for rows in batches]
    for rows in batches:
        for rig in crew.rigs:
            rig.submit(rows)
    ended: list[list[Any]] = [[], []]
    # the first stage may end a batch after the last one: it has to book it
    for rig, ends in zip(crew.rigs, ended, strict=True):
        while len(ends) < len(batches):
            ends += rig.wait()
        assert [end.seq for end in ends] == [1, 2, 3]
    assert [end.rows[0].drawn for end in ended[1]] == expected
    alone.close()
    crew.close()


@pytest.mark.parametrize(
    ("tp", "overrides", "said"),
    [
        (
            3,
            {},
            r"4 attention heads cannot be divided over tensor parallel width 3; widths "
            r"that fit: \[1, 2, 4\]",
        ),
        (
            4,
            {"intermediate_size": 130},
            r"130 columns of the MLP cannot be divided .* width " r"4; widths that fit: \[1, 2\]",
        ),
        (
            3,
            {"num_attention_heads": 6, "intermediate_size": 120, "hidden_size": 96},
            r"2 K/V heads cannot be divided over tensor parallel width 3; widths that fit: "
            r"\[1, 2, 6\]",
        ),
    ],
)
def test_a_width_that_does_not_divide_the_model_is_refused_with_those_that_do(
    tmp_path: Path, tp: int, overrides: dict[str, Any], said: str
) -> None:
    checkpoint = Checkpoint.open(make_tiny(tmp_path, **overrides))
    placement = placement_of(checkpoint, DType.F32, 1, tp=tp)
    family = family_of(checkpoint.config, FAMILIES)
    with pytest.raises(ConfigError, match=said):
        family.build(checkpoint, placement, DType.F32, TorchOps(), Alone())


@pytest.mark.parametrize("tp", [1, 2, 3, 4, 6, 8, 16])
def test_a_width_fits_where_query_heads_divide_and_key_heads_divide_or_repeat(tp: int) -> None:
    axis = (1, 2, 3, 4, 6, 8, 12, 16)
    for heads, kv_heads in [(h, kv) for h in axis for kv in axis if h % kv == 0]:
        model = {
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "hidden_size": 8 * heads,
            "intermediate_size": 96,
        }
        config = LlamaFamily().read(
            model | {"num_hidden_layers": 1, "vocab_size": 320, "max_position_embeddings": 64}
        )
        fits = [
            n
            for n in range(1, heads + 1)
            if heads % n == 96 % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)
        ]
        if tp in fits:
            require_width(config, tp)
            continue
        with pytest.raises(ConfigError) as refused:
            require_width(config, tp)
        short = f"{heads} attention heads" if heads % tp else f"{kv_heads} K/V heads"
        assert (
            str(refused.value) == f"{short} cannot be divided over tensor parallel width "
            f"{tp}; widths that fit: {fits}"
        )
