"""Times one decode step of a family against `transformers`, on a random model of a few layers with the same weights.

    python tools/decode_step.py deepseek_v3 --batch 1 8 32 --context 512

Both have the same threads and dtype, a context of random tokens for each sequence, and are timed in turns: a median over steps,
ours through the engine (embedding to drawn token), theirs through the model's forward with its cache.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from baton.adapters.memory import HostPool
from baton.core.ids import Epoch, Key, Room, Seq, TokenId, TokenIndex
from baton.core.messages import Sampling
from baton.core.state import DType, Placement
from baton.core.work import Batch, Draw, Row
from baton.engine.attention.choose import attention_for, delta_for, sparse_for
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Alone
from baton.engine.digest import block_sums
from baton.engine.engine import TorchEngine
from baton.engine.kernels.team import Team
from baton.engine.models import FAMILIES
from baton.engine.models.base import KV, family_of
from baton.engine.ops import CpuOps

B = 16
STORED = {"bfloat16": DType.BF16, "float32": DType.F32}
COMMON: Mapping[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "max_position_embeddings": 4096,
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
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("Llama", {"num_key_value_heads": 4}),
    "deepseek_v2": ("DeepseekV2", {**LATENT, "topk_method": "group_limited_greedy"}),
    "deepseek_v3": ("DeepseekV3", LATENT),
    "deepseek_v32": ("DeepseekV32", {**LATENT, "index_topk": 256, "index_head_dim": 128, "index_n_heads": 16}),
}
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, logprobs=None)


def write(path: Path, family: str, dtype: str) -> None:
    """A random checkpoint."""
    import transformers

    name, own = MODELS[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**COMMON, **own)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(getattr(torch, dtype))
    model.save_pretrained(path)


class Ours:
    """The engine over it."""

    def __init__(self, path: Path, dtype: str, threads: int, pages: int) -> None:
        checkpoint, stored = Checkpoint.open(path), STORED[dtype]
        family = family_of(checkpoint.config, FAMILIES)
        placement = Placement(family.table(checkpoint.config, block_tokens=B, dtype=stored), 1, 1, 0, 0, 1)
        self._pool = HostPool(pages * placement.page_bytes(KV))
        self._ended, self._seq, pools = threading.Event(), 0, {KV: self._pool}
        self._engine = TorchEngine(
            model=family.build(checkpoint, placement, stored, CpuOps(stored, Team(threads)), Alone()),
            placement=placement,
            pools=pools,
            attention=attention_for(pools, placement),
            sparse=sparse_for(pools, placement),
            delta=delta_for(pools, placement),
            block_sums=block_sums,
            identity=1,
            threads=threads,
            wake=self._ended.set,
        )

    def step(self, rows: list[Row]) -> list[int]:
        """One batch; the tokens drawn."""
        self._seq += 1
        self._ended.clear()
        self._engine.submit(Batch(Seq(self._seq), tuple(rows)))
        while not (found := self._engine.poll()):
            self._ended.wait()
            self._ended.clear()
        return [row.drawn.token for row in found[0].rows if row.drawn is not None]  # type: ignore[union-attr]

    def close(self) -> None:
        """End its threads."""
        self._engine.close()


def rows_of(prompts: np.ndarray, at: int, tokens: np.ndarray) -> list[Row]:
    """Tokens [sequences, count] from position `at` on, each sequence in pages of its own."""
    each = -(-(prompts.shape[1] + 200) // B)
    count = tokens.shape[1]
    return [
        Row(
            Key(Room(f"{n:032x}"), Epoch(1)),
            at,
            tuple(TokenId(int(t)) for t in tokens[n]),
            {KV: np.arange(n * each, (n + 1) * each, dtype=np.int32)},
            {},
            at + count,
            Draw(GREEDY, TokenIndex(0)),
        )
        for n in range(len(tokens))
    ]


def measure(path: Path, dtype: str, *, batch: int, context: int, threads: int, steps: int) -> dict[str, float]:
    """Median milliseconds of a step of each."""
    from transformers import AutoModelForCausalLM, DynamicCache

    prompts = torch.randint(COMMON["vocab_size"], (batch, context)).numpy()
    ours = Ours(path, dtype, threads, batch * -(-(context + 200) // B))
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    cache = DynamicCache(config=theirs.config)
    times: dict[str, list[float]] = {"ours": [], "transformers": []}
    with torch.inference_mode():
        for n in range(batch):
            ours.step([rows_of(prompts, 0, prompts)[n]])
        theirs(torch.from_numpy(prompts), past_key_values=cache, use_cache=True, logits_to_keep=1)
        token = prompts[:, -1:]
        for i in range(steps):
            began = time.perf_counter()
            ours.step(rows_of(prompts, context + i, token))
            middle = time.perf_counter()
            theirs(torch.from_numpy(token), past_key_values=cache, use_cache=True).logits.argmax(-1)
            ended = time.perf_counter()
            times["ours"].append(middle - began)
            times["transformers"].append(ended - middle)
    ours.close()
    return {name: 1000 * statistics.median(some[2:]) for name, some in times.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=MODELS)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dtype", choices=STORED, default="bfloat16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        write(path, args.family, args.dtype)
        for batch in args.batch:
            found = measure(path, args.dtype, batch=batch, context=args.context, threads=args.threads, steps=args.steps)
            print(json.dumps({"family": args.family, "batch": batch, **{k: round(v, 2) for k, v in found.items()}}), flush=True)


if __name__ == "__main__":
    main()
