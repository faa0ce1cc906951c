"""What `transformers` computes: the truth that real processes are compared with."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch


class Reference:
    """A checkpoint in float32."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def state(self, prompt: Sequence[int]) -> np.ndarray:
        """Keys and values of the prompt, [part, layer, head, position, dim]."""
        with torch.inference_mode():
            cache = self.model(torch.tensor([prompt]), use_cache=True).past_key_values
        layers = [torch.stack((layer.keys[0], layer.values[0])) for layer in cache.layers]
        return torch.stack(layers, dim=1).numpy()

    def whole_state(self, prompt: Sequence[int]) -> list[np.ndarray]:
        """The same by layer, [part, head, position, dim], where `transformers` itself would keep no
        more than a window."""
        from transformers import DynamicCache

        with torch.inference_mode():
            cache = self.model(
                torch.tensor([prompt]), past_key_values=DynamicCache(), use_cache=True
            ).past_key_values
        return [torch.stack((layer.keys[0], layer.values[0])).numpy() for layer in cache.layers]

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """Greedy tokens."""
        tokens = list(prompt)
        for _ in range(count):
            with torch.inference_mode():
                tokens.append(
                    int(self.model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax())
                )
        return tokens[len(prompt) :]
