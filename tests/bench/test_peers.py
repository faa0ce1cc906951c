"""A quick run beside other engines is compared with the committed one."""

import pytest
from tools.peers.report import outside


def result(case="decode 1 x 128", threads=1, **ratios):
    return {"rows": [{"case": case, "threads": threads, "ratio": ratios}]}


@pytest.mark.parametrize("ratio", [0.71, 1.0, 1.29])
def test_a_ratio_within_the_band_is_fine(ratio):
    assert outside(result(vllm=ratio), result(vllm=1.0), 0.3) == []


@pytest.mark.parametrize("ratio", [0.69, 1.31])
def test_a_ratio_outside_the_band_is_named_with_both_figures(ratio):
    (line,) = outside(result(vllm=ratio), result(vllm=1.0), 0.3)
    assert line.startswith("decode 1 x 128, threads 1, beside vllm: ")
    assert f"{ratio:.2f}" in line
    assert "1.00" in line


def test_the_band_is_a_share_of_the_committed_ratio():
    assert outside(result(vllm=0.28), result(vllm=0.2), 0.3) != []
    assert outside(result(vllm=2.5), result(vllm=2.0), 0.3) == []


def test_what_only_one_of_them_has_is_left_out():
    committed = result(vllm=1.0, transformers=0.5)
    assert outside(result(transformers=0.5), committed, 0.3) == []


def test_nothing_in_common_is_an_error_and_not_a_success():
    with pytest.raises(ValueError, match="no ratio in common"):
        outside(result(threads=2, vllm=1.0), result(vllm=1.0), 0.3)
