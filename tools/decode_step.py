"""Times steps of a family against `transformers`: one random model of a few layers, the same
weights, in turns.

    python tools/decode_step.py deepseek_v3 --batch 1 8 32 --context 512
    python tools/decode_step.py qwen3_next --batch 1 8 32 --prompt 512 2048

Both have the same threads and dtype. A context is computed once and given to every sequence of a
batch, which then goes on with random tokens of its own. Ours goes through the engine (embedding to
drawn token), theirs through the model's forward with its cache. Medians of milliseconds by the
clock and of processor time, which other work on the machine disturbs less; `ratio` is theirs over
ours, `same` the share of tokens that both find (a random model's logits are nearly tied: not all,
in 16 bits).
"""

import argparse
import copy
import json
import logging
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch

from baton.adapters.memory import HostPool
from baton.core.ids import Epoch, GroupName, Key, Room, Seq, TokenId, TokenIndex
from baton.core.memory.state import DType, Placement, Unit
from baton.core.messages import Sampling
from baton.core.work import Batch, Draw, Row
from baton.engine.attention.registry import Backends
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Alone
from baton.engine.cpu_ops import CpuOps
from baton.engine.digest import block_sums
from baton.engine.engine import TorchEngine
from baton.engine.kernels.team import Team
from baton.engine.models import FAMILIES
from baton.engine.models.base import family_of

B = 16
CHUNK = 512  # tokens of one pass over a prompt, ours
WARM, LEAST = 1, 3  # steps that are not counted, and that are at least
STORED = {"bfloat16": DType.BF16, "float32": DType.F32}
COMMON: Mapping[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "max_position_embeddings": 4096,
    "pad_token_id": None,
}
LATENT: Mapping[str, Any] = {
    "num_key_value_heads": 16,
    "q_lora_rank": 384,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}
GROUPED: Mapping[str, Any] = {"num_key_value_heads": 4, "head_dim": 64}
HYBRID: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 128,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
MIXED: Mapping[str, Any] = {
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
}
# classes of the config and of the model, and sizes of their own
MODELS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "llama": ("Llama", "Llama", GROUPED),
    "qwen3_moe": ("Qwen3Moe", "Qwen3Moe", {**GROUPED, **MIXED}),
    "gpt_oss": (
        "GptOss",
        "GptOss",
        {**GROUPED, "num_local_experts": 16, "num_experts_per_tok": 4, "intermediate_size": 512},
    ),
    "deepseek_v2": ("DeepseekV2", "DeepseekV2", {**LATENT, "topk_method": "group_limited_greedy"}),
    "deepseek_v3": ("DeepseekV3", "DeepseekV3", LATENT),
    "deepseek_v32": (
        "DeepseekV32",
        "DeepseekV32",
        {**LATENT, "index_topk": 256, "index_head_dim": 128, "index_n_heads": 16},
    ),
    "qwen3_next": (
        "Qwen3Next",
        "Qwen3Next",
        {**HYBRID, **MIXED, "shared_expert_intermediate_size": 512},
    ),
    "qwen3_5": ("Qwen3_5Text", "Qwen3_5", HYBRID),
}
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, logprobs=None)
Step = Callable[[np.ndarray], list[int]]  # tokens fed -> tokens found


class Theirs:
    """A random model of `transformers`, and its cache."""

    def __init__(self, family: str, dtype: str, path: Path) -> None:
        import transformers

        config, model, own = MODELS[family]
        torch.manual_seed(0)
        torch.set_default_dtype(getattr(torch, dtype))
        made = getattr(transformers, f"{model}ForCausalLM")(
            getattr(transformers, f"{config}Config")(**{**COMMON, **own})
        )
        torch.set_default_dtype(torch.float32)
        self._model = made.to(getattr(torch, dtype)).eval()
        self._model.save_pretrained(path)
        self._context: Any = None
        self._cache: Any = None

    def prefill(self, prompt: np.ndarray) -> list[int]:
        """One prompt, from nothing."""
        from transformers import DynamicCache

        self._context = DynamicCache(config=self._model.config)
        return self._forward(prompt[None], self._context)

    def share(self, batch: int) -> None:
        """The last prompt's cache, for so many sequences."""
        self._cache = copy.deepcopy(self._context)
        self._cache.reorder_cache(torch.zeros(batch, dtype=torch.int64))

    def step(self, tokens: np.ndarray) -> list[int]:
        """One token for each sequence."""
        return self._forward(tokens[:, None], self._cache)

    def _forward(self, tokens: np.ndarray, cache: Any) -> list[int]:
        with torch.inference_mode():
            found = self._model(
                torch.from_numpy(tokens), past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            best: list[int] = found.logits[:, -1].argmax(-1).tolist()
        return best


class Ours:
    """The engine over the same weights; sequence n has pages and a slot of its own. longest:
    positions of one."""

    def __init__(self, path: Path, dtype: str, *, threads: int, batch: int, longest: int) -> None:
        checkpoint, stored = Checkpoint.open(path), STORED[dtype]
        family = family_of(checkpoint.config, FAMILIES)
        self._placement = Placement(
            family.table(checkpoint.config, block_tokens=B, dtype=stored), 1, 1, 0, 0, 1
        )
        self._each = {
            g.name: -(-longest // B) if g.unit is Unit.PAGE else 1
            for g in self._placement.table.groups
        }
        sizes = {g: self._placement.page_bytes(g) for g in self._each}
        self._pools = {g: HostPool(batch * n * sizes[g]) for g, n in self._each.items()}
        self._ended, self._seq, self._length, self._context_length = threading.Event(), 0, 0, 0
        team = Team(threads)
        ops = CpuOps(stored, team)
        self._engine = TorchEngine(
            model=family.build(checkpoint, self._placement, stored, ops, Alone()),
            placement=self._placement,
            pools=self._pools,
            backends=Backends(self._pools, self._placement, team=team),
            block_sums=block_sums,
            identity=1,
            threads=threads,
            wake=self._ended.set,
            rehearse=lambda: ops.rehearse(batch),
        )
        self._context: dict[GroupName, np.ndarray] = {}

    def prefill(self, prompt: np.ndarray) -> list[int]:
        """One prompt, from nothing, in chunks."""
        found: list[int] = []
        for start in range(0, len(prompt), CHUNK):
            found = self._run([self._row(0, start, prompt[start : start + CHUNK])])
        self._context_length = len(prompt)
        self._context = {g: self._pools[g].array[: self._bytes(g)].copy() for g in self._each}
        return found

    def prefill_all(self, prompts: Sequence[np.ndarray]) -> list[int]:
        """Prompts of equal length, from nothing, one behind the other in chunks; `step` goes on from
        them."""
        found = []
        for n, prompt in enumerate(prompts):
            for start in range(0, len(prompt), CHUNK):
                last = self._run([self._row(n, start, prompt[start : start + CHUNK])])
            found += last
        self._length = len(prompts[0])
        return found

    def share(self, batch: int) -> None:
        """The last prompt's state, for so many sequences."""
        self._length = self._context_length
        for group, state in self._context.items():
            size = self._bytes(group)
            for n in range(batch):
                self._pools[group].array[n * size : (n + 1) * size] = state

    def step(self, tokens: np.ndarray) -> list[int]:
        """One token for each sequence."""
        found = self._run(
            [self._row(n, self._length, tokens[n : n + 1], said=1) for n in range(len(tokens))]
        )
        self._length += 1
        return found

    def close(self) -> None:
        """End its threads, then give its memory back."""
        self._engine.close()
        for pool in self._pools.values():
            pool.close()

    def _bytes(self, group: GroupName) -> int:
        return self._each[group] * self._placement.page_bytes(group)

    def _row(self, n: int, start: int, tokens: np.ndarray, said: int = 0) -> Row:
        past = start + len(tokens)
        pages = {
            g: np.arange(n * each, (n + 1) * each, dtype=np.int32) for g, each in self._each.items()
        }
        fed = tuple(TokenId(int(t)) for t in tokens)
        return Row(
            Key(Room(f"{n:032x}"), Epoch(1)),
            start,
            fed,
            pages,
            {},
            past,
            Draw(GREEDY, TokenIndex(0)),
            said=said,
        )

    def _run(self, rows: Sequence[Row]) -> list[int]:
        self._seq += 1
        self._ended.clear()
        self._engine.submit(Batch(Seq(self._seq), tuple(rows)))
        while not (found := self._engine.poll()):
            self._ended.wait()
            self._ended.clear()
        return [row.drawn.token for row in found[0].rows if row.drawn is not None]  # type: ignore[union-attr]


def in_turns(
    ours: Step, theirs: Step, fed: Sequence[np.ndarray], *, warm: int, patience_s: float
) -> Iterator[dict[str, float]]:
    """One pair of steps after the other: milliseconds by the clock and of processor time, and
    whether they find the same."""
    ends = time.monotonic() + patience_s
    for i, tokens in enumerate(fed):
        if i >= warm + LEAST and time.monotonic() > ends:
            return
        found, row = [], {}
        for name, step in (("ours", ours), ("transformers", theirs)):
            wall, cpu = time.perf_counter(), time.process_time()
            found.append(step(tokens))
            row[name] = 1000 * (time.perf_counter() - wall)
            row[f"{name}_cpu"] = 1000 * (time.process_time() - cpu)
        row["same"] = sum(a == b for a, b in zip(*found, strict=True)) / len(found[0])
        if i >= warm:
            yield row


def summary(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Medians, and their ratios."""
    found = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    found["same"] = statistics.mean(row["same"] for row in rows)
    found |= {
        f"ratio{kind}": found[f"transformers{kind}"] / found[f"ours{kind}"] for kind in ("", "_cpu")
    }
    return {name: round(value, 2) for name, value in found.items()} | {"steps": len(rows)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", choices=MODELS)
    parser.add_argument(
        "--batch",
        type=int,
        nargs="*",
        default=[1, 8, 32],
        help="sequences of a step; none: prompts only",
    )
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument(
        "--prompt", type=int, nargs="*", default=[], help="prompts to compute, one at a time"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--patience",
        type=float,
        default=20.0,
        help="seconds for a batch size, once it has its least steps",
    )
    parser.add_argument("--dtype", choices=STORED, default="bfloat16")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    torch.set_num_threads(args.threads)
    longest = max([args.context + WARM + args.steps, *args.prompt])
    with tempfile.TemporaryDirectory() as directory:
        theirs = Theirs(args.family, args.dtype, Path(directory))
        ours = Ours(
            Path(directory),
            args.dtype,
            threads=args.threads,
            batch=max([1, *args.batch]),
            longest=longest,
        )
    chance = np.random.default_rng(0)  # noqa: TID251 (a tool's, from a seed)

    def tokens(count: int) -> np.ndarray:
        return chance.integers(0, COMMON["vocab_size"], count)

    def report(
        what: Mapping[str, Any], one: Step, other: Step, fed: Sequence[np.ndarray], *, warm: int
    ) -> None:
        rows = list(in_turns(one, other, fed, warm=warm, patience_s=args.patience))
        print(json.dumps({"family": args.family, **what, **summary(rows)}), flush=True)

    for length in args.prompt:
        report(
            {"prompt": length}, ours.prefill, theirs.prefill, [tokens(length)] * (1 + LEAST), warm=1
        )
    if args.batch:
        context = tokens(args.context)
        ours.prefill(context)
        theirs.prefill(context)
    for batch in args.batch:
        ours.share(batch)
        theirs.share(batch)
        fed = [tokens(batch) for _ in range(WARM + args.steps)]
        report({"batch": batch, "context": args.context}, ours.step, theirs.step, fed, warm=WARM)
    ours.close()


if __name__ == "__main__":
    main()
