"""llama.cpp by its Python binding's low-level calls. Runs in the environment of llama-cpp-python,
over the same weights as a GGUF file (gguf_file.py)."""

import time
from collections.abc import Mapping
from typing import Any

import llama_cpp
import numpy as np
from tools.peers.case import STEPS, serve

MOST, CHUNK = 32, 512


class LlamaEngine:
    """Implements case.Engine."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            said["gguf"].encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = MOST * (1024 + 2 * STEPS)
        params.n_batch, params.n_ubatch, params.n_seq_max = CHUNK, CHUNK, MOST
        params.n_threads = params.n_threads_batch = said["threads"]
        params.kv_unified = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self._model)
        )
        self._batch = llama_cpp.llama_batch_init(CHUNK, 0, 1)

    def prefill(self, prompts: list[list[int]]) -> float:
        began = time.perf_counter()
        self._first(prompts)
        return time.perf_counter() - began

    def decode(self, prompts: list[list[int]], steps: int) -> list[float]:
        tokens, found = self._first(prompts), []
        for n in range(steps):
            began = time.perf_counter()
            at = len(prompts[0]) + n
            tokens = self._run([(t, at, seq, True) for seq, t in enumerate(tokens)])
            found.append(time.perf_counter() - began)
        return found

    def _first(self, prompts: list[list[int]]) -> list[int]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        rows = [
            (token, at, seq, at + 1 == len(prompt))
            for seq, prompt in enumerate(prompts)
            for at, token in enumerate(prompt)
        ]
        found: list[int] = []
        for begin in range(0, len(rows), CHUNK):
            found += self._run(rows[begin : begin + CHUNK])
        return found

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Compute rows (token, position, sequence, whether it is followed); the tokens drawn."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for n, (token, at, seq, drawn) in enumerate(rows):
            batch.token[n], batch.pos[n], batch.logits[n] = token, at, drawn
            batch.n_seq_id[n], batch.seq_id[n][0] = 1, seq
        if status := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode: {status}")
        found = []
        for n, row in enumerate(rows):
            if row[3]:
                logits = llama_cpp.llama_get_logits_ith(self._context, n)
                found.append(int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax()))
        return found


if __name__ == "__main__":
    serve(LlamaEngine)
