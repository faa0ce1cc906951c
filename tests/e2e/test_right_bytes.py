"""After a handoff decode's memory holds prefill's bytes, compared as bytes: no plan, no seal, no
placement here.

On empty pools the first request lies at the start of each, block after block, whatever the page
size; so both copies begin with the same bytes. Its length is a multiple of the block, so what
decode generates goes behind them.
"""

from pathlib import Path

import pytest
from tests.e2e.service import Service

BLOCK = 16
LAYERS, KV_HEADS, DIM, PARTS = 2, 2, 16, 2
LENGTH = 10 * BLOCK
SIZE = {"float32": 4, "bfloat16": 2}


CASES = [
    ("shm", "float32", (16, 16)),
    ("shm", "bfloat16", (64, 16)),
    ("nixl", "float32", (16, 48)),
    ("nixl", "bfloat16", (16, 16)),
]


@pytest.mark.parametrize(("fabric", "dtype", "pages"), CASES)
def test_decode_holds_the_bytes_of_prefill(
    tmp_path: Path, tiny: Path, fabric: str, dtype: str, pages: tuple[int, int]
) -> None:
    service = Service(tmp_path, tiny, dtype=dtype, fabric=fabric)
    try:
        service.start_gateway()
        for role, page in zip(("prefill", "decode"), pages, strict=True):
            flags = ("--kv-pages", "20", "--page-size", str(page), "--max-num-batched-tokens", "64")
            service.start_worker(
                role, *flags, main=["-m", "tests.e2e.spying_worker", str(tmp_path / f"{role}.pool")]
            )
        service.wait_ready()
        assert (
            len(service.ids([1 + i % 250 for i in range(LENGTH)], max_tokens=5, ignore_eos=True))
            == 5
        )
    finally:
        service.close()
    nbytes = LENGTH * LAYERS * KV_HEADS * DIM * PARTS * SIZE[dtype]
    source, target = ((tmp_path / f"{role}.pool").read_bytes() for role in ("prefill", "decode"))
    assert target[:nbytes] == source[:nbytes]
    row = DIM * SIZE[dtype]
    assert all(any(source[at : at + row]) for at in range(0, nbytes, row)), "every row was written"
    assert any(target[nbytes : nbytes + 64 * row]), "decode went on behind it"
    assert not any(source[nbytes : nbytes + 64 * row]), "prefill did not"
