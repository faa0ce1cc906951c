"""What checkpoints of prompts gain: how long the turns of a conversation take until their first
token, with and without host memory on prefill, in the same run.

    tools/checkpoint_gain.py --family gemma3 --opening 2000 --more 100

The models are random ones of some layers, because no trained one is small enough: what counts is
that they have windows or recurrent state. One gateway, a prefill and a decode worker, one thread
each.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from tests.e2e.service import Service, by_command, split
from tests.tiny import make_tiny

LAYERS = (["sliding_attention"] * 5 + ["full_attention"]) * 3
MODELS: Mapping[str, dict[str, Any]] = {
    # as wide and deep as Gemma 3 270M
    "gemma3": {
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": len(LAYERS),
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "max_position_embeddings": 8192,
        "layer_types": LAYERS,
    },
    "qwen3_next": {
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "max_position_embeddings": 8192,
    },
}
POOL = ("--kv-memory", "512MiB")


def main() -> None:
    """Print a line for each setting: milliseconds of first turns and of later ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=sorted(MODELS), default="gemma3")
    parser.add_argument("--opening", type=int, default=2000, help="tokens of the first prompt")
    parser.add_argument("--more", type=int, default=100, help="new tokens of each later one")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--conversations", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model = make_tiny(Path(directory) / "model", args.family, **MODELS[args.family])
        for host in ("0", "auto"):
            logs = Path(directory) / host
            logs.mkdir()
            prefill = ("--host-kv-memory", host, *POOL)
            with split(
                logs, model, dtype="bfloat16", begin=by_command, prefill=prefill, decode=POOL
            ) as service:
                service.complete(_some(args.opening, 0), max_tokens=2, ignore_eos=True)
                first, later, cached = _measure(service, args)
            print(
                f"--host-kv-memory {host}: first turn {first:.0f} ms, later ones {later:.0f} ms, "
                f"of whose tokens {cached:.0%} were not computed"
            )


def _measure(service: Service, args: argparse.Namespace) -> tuple[float, float, float]:
    firsts, laters, shares = [], [], []
    for conversation in range(1, args.conversations + 1):
        prompt = _some(args.opening, conversation)
        for turn in range(args.turns):
            began = time.perf_counter()
            body = service.complete(prompt, max_tokens=1, ignore_eos=True).json()
            (laters if turn else firsts).append(1000 * (time.perf_counter() - began))
            if turn:
                known = body["usage"]["prompt_tokens_details"]["cached_tokens"]
                shares.append(known / len(prompt))
            prompt += [*body["choices"][0]["token_ids"], *_some(args.more, 100 + turn)]
            service.wait_clean()
    return statistics.median(firsts), statistics.median(laters), statistics.mean(shares)


def _some(count: int, seed: int) -> list[int]:
    draw = Random(seed)
    return [draw.randrange(250) for _ in range(count)]


if __name__ == "__main__":
    main()
