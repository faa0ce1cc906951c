"""The draft layer in the engine: its drafts are those of a plain forward over the whole sequence,
whatever the chunks, the drafts before and the width; tokens do not change; and a request that is
handed over goes on as if it had stayed."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.test_families import PAGES, hand_over, prompt
from tests.engine.whole import B, Crew, Request, Rig, placement_of
from tests.tiny import UNTIED, draft_names, make_tiny, make_tiny_with_draft_layer

from baton.core.errors import ConfigError
from baton.core.memory.state import DType
from baton.core.work import RowDone
from baton.engine.attention.hidden import HIDDEN
from baton.engine.checkpoint import Checkpoint
from baton.engine.models import FAMILIES
from baton.engine.models.base import KV, SLOT, family_of
from baton.engine.models.mtp import DRAFT

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3": ("deepseek_v3", {}),
    "deepseek_v32": ("deepseek_v32", {}),
    "glm_moe_dsa": ("glm_moe_dsa", {}),
    "glm_moe_dsa shared": (
        "glm_moe_dsa",
        {"num_hidden_layers": 3, "indexer_types": ["full", "shared", "shared", "full"]},
    ),
    "kimi_k2, not compressed": (
        "deepseek_v3",
        {"q_lora_rank": None, "n_group": 1, "topk_group": 1},
    ),
    "qwen3_next": ("qwen3_next", {}),
    "qwen3_5": ("qwen3_5", {}),
    "qwen3_5_moe, untied": ("qwen3_5_moe", UNTIED),
}
ANSWER = 30


def make(path: Path, name: str = "deepseek_v3", **changes: Any) -> Path:
    family, own = MODELS[name]
    return make_tiny_with_draft_layer(path, family, **own, **changes)


def truth(path: Path, tokens: Sequence[int]) -> torch.Tensor:
    """Logits [tokens, vocab] of the draft layer at each position, all at once: transformers' own
    layer behind the last one, whose input is made as the paper says. Row j is of the hidden state
    at j - 1 and the token at j."""
    import transformers

    said = json.loads((path / "config.json").read_text())
    layers, eps = said["num_hidden_layers"], said["rms_norm_eps"]
    longer, names = {"num_hidden_layers": layers + 1}, draft_names(said["model_type"], layers)
    for key, value in said.items():  # what it says of each layer
        if isinstance(value, list) and len(value) == layers:
            longer[key] = [*value, "full" if key == "indexer_types" else value[-1]]
    whole = path / "longer"
    whole.mkdir()
    (whole / "config.json").write_text(json.dumps(said | longer))
    tensors = load_file(path / "model.safetensors")
    renamed = {n.replace(names.layer, f"model.layers.{layers}."): t for n, t in tensors.items()}
    save_file(renamed, whole / "model.safetensors", metadata={"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(
        whole, dtype=torch.float32, attn_implementation="eager"
    ).eval()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = tensors[f"{name}.weight"] + names.offset
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    def begin(_module: Any, args: Any, kwargs: Any) -> Any:
        x = args[0] if args else kwargs["hidden_states"]
        hidden = norm(x, "model.norm")
        before = torch.cat((torch.zeros_like(hidden[:, :1]), hidden[:, :-1]), 1)
        embedded = tensors["model.embed_tokens.weight"][torch.tensor([tokens])]
        token = norm(embedded, f"{names.at}{names.token}")
        both = torch.cat((token, norm(before, f"{names.at}{names.before}")), -1)
        made = both @ tensors[f"{names.at}{names.product}.weight"].T
        return ((made, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": made})

    model.model.layers[layers].register_forward_pre_hook(begin, with_kwargs=True)
    model.model.norm.weight.data = tensors[f"{names.at}{names.last}.weight"]
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]


def rig_of(path: Path, **changes: Any) -> Rig:
    return Rig(
        path, placement=placement_of(Checkpoint.open(path), DType.F32, 1, drafts=True), **changes
    )


def prefilled(rig: Rig | Crew, request: Request, borders: Sequence[int]) -> RowDone:
    for start, end in itertools.pairwise(borders):
        row = request.chunk(start, end, draw=end == borders[-1])
        (done,) = rig.run([msgspec.structs.replace(row, drafts=3)])
        if end < borders[-1]:
            assert done.drafts == ()
    return done


def generated(
    rig: Rig | Crew, request: Request, first: RowDone, count: int, wanted: int
) -> list[int]:
    """So many tokens, by the drafts of each step before; checks that the right ones are taken."""
    assert first.drawn is not None
    tokens, drafts = [first.drawn.token], first.drafts
    while len(tokens) < count:
        index = len(tokens)
        row = request.guessed([tokens[-1], *drafts], index)
        (done,) = rig.run([msgspec.structs.replace(row, drafts=wanted)])
        assert done.drawn is not None
        tokens += [done.drawn.token, *(d.token for d in done.more)]
        drafts = done.drafts
        assert len(drafts) == wanted
    return tokens[:count]


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("borders", [[0, 61], [0, 7, 24, 25, 48, 61]])
def test_its_rows_are_those_of_a_plain_forward(
    tmp_path: Path, name: str, borders: list[int]
) -> None:
    """Each step's first draft is the likeliest token of the layer's row at the drawn token."""
    path = make(tmp_path, name)
    rig, request = rig_of(path), Request(1, prompt(), PAGES)
    done = prefilled(rig, request, borders)
    assert done.drawn is not None
    tokens, firsts = [done.drawn.token], [done.drafts[0]]
    while len(tokens) < ANSWER:
        # wrong drafts, right ones and none
        kind = len(tokens) % 3
        guessed = [(), done.drafts, (1, 2, 3)][kind]
        row = request.guessed([tokens[-1], *guessed], len(tokens))
        (done,) = rig.run([msgspec.structs.replace(row, drafts=1 + kind)])
        assert done.drawn is not None
        tokens += [done.drawn.token, *(d.token for d in done.more)]
        firsts += [None] * len(done.more) + [done.drafts[0]]
    rig.close()
    logits = truth(path, [*prompt(), *tokens])
    for n, draft in enumerate(firsts):
        if draft is not None:
            row = logits[len(prompt()) + n]
            top = row.topk(2).values
            assert int(row.argmax()) == draft or float(top[0] - top[1]) < 1e-3, n


@pytest.mark.parametrize("name", list(MODELS))
def test_tokens_are_the_same(tmp_path: Path, name: str) -> None:
    path = make(tmp_path, name)
    plain, drafted = Rig(path), rig_of(path)
    request = Request(1, prompt(), PAGES)
    (first,) = plain.run([request.whole()])
    assert first.drawn is not None
    tokens = [first.drawn.token]
    while len(tokens) < ANSWER:
        (done,) = plain.run([request.next(tokens[-1], len(tokens))])
        assert done.drawn is not None
        tokens.append(done.drawn.token)
    for wanted in (1, 2, 5):
        first = prefilled(drafted, request, [0, 16, 61])
        assert generated(drafted, request, first, ANSWER, wanted) == tokens
    plain.close()
    drafted.close()


@pytest.mark.parametrize(
    "name", ["deepseek_v3", "deepseek_v32", "glm_moe_dsa", "qwen3_next", "qwen3_5"]
)
def test_good_drafts_are_taken(tmp_path: Path, name: str) -> None:
    path = make(tmp_path, name, right=True)
    rig, request = rig_of(path), Request(1, prompt(), PAGES)
    first = prefilled(rig, request, [0, 61])
    before = rig._seq
    tokens = generated(rig, request, first, ANSWER, 3)
    assert rig._seq - before < ANSWER / 2
    plain = Rig(path)
    (done,) = plain.run([request.whole()])
    for n, token in enumerate(tokens):
        assert done.drawn is not None
        assert done.drawn.token == token
        (done,) = plain.run([request.next(token, n + 1)])
    rig.close()
    plain.close()


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v32", "qwen3_next", "qwen3_5"])
def test_a_request_that_is_handed_over_has_the_same_drafts(tmp_path: Path, name: str) -> None:
    path = make(tmp_path, name)
    one, other = rig_of(path), rig_of(path)
    request, moved = Request(2, prompt(), PAGES), Request(2, prompt(), PAGES[::-1])
    first = prefilled(one, request, [0, 20, 61])
    used = -(-len(prompt()) // B)
    hand_over(one, other, PAGES[:used], PAGES[::-1][:used])
    assert one.pools[DRAFT].array.any()
    for wanted in (1, 3):
        assert generated(one, request, first, ANSWER, wanted) == generated(
            other, moved, first, ANSWER, wanted
        )
    one.close()
    other.close()


def test_the_state_after_wrong_drafts_is_that_without_drafts(tmp_path: Path) -> None:
    """The rows up to the last token, and the last hidden state; what lies behind is free."""
    path = make(tmp_path)
    plain, drafted = rig_of(path), rig_of(path)
    request = Request(1, prompt(), PAGES)
    states = []
    for rig, guessed in ((plain, ()), (drafted, (1, 2, 3, 4))):
        done = prefilled(rig, request, [0, 61])
        for n in range(12):
            assert done.drawn is not None
            assert not done.more
            row = request.guessed([done.drawn.token, *guessed], n + 1)
            (done,) = rig.run([msgspec.structs.replace(row, drafts=2)])
        place, past = rig.placement.places["latent"], len(prompt()) + 12
        rows = rig.pools[KV].array.view(np.float32).reshape(64, -1)[PAGES]
        rows = rows.reshape(len(PAGES), len(place.layers), B, -1).transpose(0, 2, 1, 3)
        slot = rig.pools[DRAFT].array.view(np.float32).reshape(64, -1)[PAGES[0]]
        states.append((rows.reshape(len(PAGES) * B, -1)[:past], slot.copy()))
    for a, b in zip(*states, strict=True):
        assert np.abs(a - b).max() <= 1e-4 * np.abs(b).max()
    plain.close()
    drafted.close()


def test_a_cold_row_does_not_see_the_slots_previous_owner(tmp_path: Path) -> None:
    path = make(tmp_path)
    found = []
    for junk in (0.0, 5.0):
        rig, request = rig_of(path), Request(1, prompt(), PAGES)
        rig.pools[DRAFT].array.view(np.float32)[:] = junk
        rig.run([request.chunk(0, 32, draw=False)])
        rig.pools[DRAFT].array.view(np.float32)[:] = junk  # as behind cached pages
        row = msgspec.structs.replace(request.chunk(32, 61), cold=True, drafts=4)
        (done,) = rig.run([row])
        found.append((done.drawn, done.drafts, rig.bytes.copy()))
        rig.close()
    assert found[0][:2] == found[1][:2]
    assert (found[0][2] == found[1][2]).all()


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", ["deepseek_v3", "glm_moe_dsa", "qwen3_next", "qwen3_5"])
def test_several_ranks_draft_the_same(tmp_path: Path, name: str, tp: int) -> None:
    path = make(tmp_path, name, right=name == "deepseek_v3")
    rig, request = rig_of(path), Request(1, prompt(), PAGES)
    first = prefilled(rig, request, [0, 20, 61])
    expected = generated(rig, request, first, ANSWER, 2)
    rig.close()
    crew = Crew(path, tp=tp, pp=1, drafts=True)
    assert prefilled(crew, request, [0, 20, 61]).drafts == first.drafts
    assert generated(crew, request, first, ANSWER, 2) == expected
    slots = [rig.pools[DRAFT].array for rig in crew.rigs]
    assert all((slots[0] == other).all() for other in slots)
    crew.close()


def test_the_table(tmp_path: Path) -> None:
    path = make(tmp_path, "deepseek_v32")
    checkpoint = Checkpoint.open(path)
    plain = placement_of(checkpoint, DType.BF16, 1)
    drafts = placement_of(checkpoint, DType.BF16, 1, drafts=True)
    # a latent row and an index key
    assert drafts.block_bytes(KV) - plain.block_bytes(KV) == B * 2 * (32 + 8 + 28)
    assert drafts.block_bytes(DRAFT) == 2 * 64
    assert drafts.places[HIDDEN].spec.row == 64
    assert drafts.table.cacheable
    assert drafts.table.lasting == (KV,)


def test_beside_recurrent_state_only_the_rows_of_attention_are_more(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(make(tmp_path, "qwen3_next"))
    plain = placement_of(checkpoint, DType.BF16, 1)
    drafts = placement_of(checkpoint, DType.BF16, 1, drafts=True)
    assert drafts.places["kv"].layers == (3, 4)
    assert drafts.block_bytes(KV) == 2 * plain.block_bytes(KV)
    assert drafts.block_bytes(SLOT) == plain.block_bytes(SLOT)
    assert drafts.block_bytes(DRAFT) == 2 * 64
    assert not drafts.table.cacheable


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("llama", {}),
        ("deepseek_v3", {"num_nextn_predict_layers": None}),
        ("qwen3_next", {"num_nextn_predict_layers": 0}),
        ("qwen3_5", {"mtp_num_hidden_layers": 0}),
        ("qwen3_5", {"mtp_use_dedicated_embeddings": True}),
    ],
)
def test_a_model_without_one_is_refused_by_name(
    tmp_path: Path, family: str, said: dict[str, int | bool | None]
) -> None:
    checkpoint = Checkpoint.open(make_tiny(tmp_path, family))
    config = {k: v for k, v in (checkpoint.config | said).items() if v is not None}
    found = family_of(config, FAMILIES)
    table = found.table(config, block_tokens=B, dtype=DType.F32)
    with pytest.raises(ConfigError, match=f"method mtp: {found.name}"):
        found.with_draft_layer(config, table)


def test_stages_of_a_pipeline_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--pp 2"):
        Crew(make(tmp_path), tp=1, pp=2, drafts=True)


def test_the_layer_that_qwen_publishes_need_not_be_in_the_config(tmp_path: Path) -> None:
    """As of Qwen3-Next-80B-A3B; a checkpoint without it is refused by the first tensor."""
    path = make_tiny(tmp_path, "qwen3_next")
    with pytest.raises(ConfigError, match=r"mtp\.pre_fc_norm_embedding\.weight"):
        rig_of(path)


def test_a_tensor_that_it_lacks_is_named(tmp_path: Path) -> None:
    path = make_tiny(tmp_path, "deepseek_v3")
    config = path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_nextn_predict_layers": 1}))
    with pytest.raises(ConfigError, match=r"model\.layers\.3\.enorm\.weight"):
        rig_of(path)
