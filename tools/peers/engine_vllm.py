"""vLLM's engine in one process, without a server. Runs in vLLM's environment."""

import os
import time
from collections.abc import Mapping
from typing import Any

from tools.peers.case import serve

CHUNK = 4096


class VllmEngine:
    """Implements case.Engine."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = "4"
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, range(said["threads"])))
        from vllm import LLM, SamplingParams

        self._sampling = SamplingParams
        self._engine = LLM(
            said["model"],
            dtype=said["dtype"],
            enable_prefix_caching=False,
            max_model_len=2112,
            max_num_batched_tokens=CHUNK,
            max_num_seqs=32,
            disable_log_stats=True,
        ).llm_engine
        self._requests = 0

    def prefill(self, prompts: list[list[int]]) -> float:
        began = time.perf_counter()
        self._add(prompts, 1)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return time.perf_counter() - began

    def decode(self, prompts: list[list[int]], steps: int) -> list[float]:
        self._add(prompts, steps + 1)
        seen: dict[str, int] = {}
        while len(seen) < len(prompts):
            self._step(seen)
        found = []
        while self._engine.has_unfinished_requests():
            began = time.perf_counter()
            self._step(seen)
            found.append(time.perf_counter() - began)
        return found[:steps]

    def _step(self, seen: dict[str, int]) -> None:
        for output in self._engine.step():
            seen[output.request_id] = len(output.outputs[0].token_ids)

    def _add(self, prompts: list[list[int]], tokens: int) -> None:
        for prompt in prompts:
            self._requests += 1
            params = self._sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True)
            self._engine.add_request(str(self._requests), {"prompt_token_ids": prompt}, params)


if __name__ == "__main__":
    serve(VllmEngine)
