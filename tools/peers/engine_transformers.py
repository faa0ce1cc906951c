"""transformers, as its documentation generates on a CPU: sdpa attention, a dynamic cache."""

import time
from collections.abc import Mapping
from typing import Any

import torch
from tools.peers.case import serve


class TransformersEngine:
    """Implements case.Engine."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        import transformers

        torch.set_num_threads(said["threads"])
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            said["model"], dtype=getattr(torch, said["dtype"])
        ).eval()

    def prefill(self, prompts: list[list[int]]) -> float:
        began = time.perf_counter()
        self._first(prompts)
        return time.perf_counter() - began

    def decode(self, prompts: list[list[int]], steps: int) -> list[float]:
        tokens, cache = self._first(prompts)
        found = []
        for _ in range(steps):
            began = time.perf_counter()
            tokens = self._forward(tokens[:, None], cache)
            found.append(time.perf_counter() - began)
        return found

    def _first(self, prompts: list[list[int]]) -> tuple[torch.Tensor, Any]:
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config)
        return self._forward(torch.tensor(prompts), cache), cache

    def _forward(self, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        with torch.inference_mode():
            found = self._model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            best: torch.Tensor = found.logits[:, -1].argmax(-1)
        return best


if __name__ == "__main__":
    serve(TransformersEngine)
