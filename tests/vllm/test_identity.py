"""What two engines must have in common beyond their weights, and how a refusal names it."""

from types import SimpleNamespace as Made

import pytest
from msgspec.structs import replace
from tests.core.build import manifest
from tests.vllm.test_layout import configs

from baton.core.errors import Mismatch
from baton.core.manifest import require_fit
from baton.vllm.identity import computation
from baton.vllm.layout import state_table

THETA = {"rope_theta": 1e4, "id2label": {0: "a"}}


def how(*, version="0.32.0", hf=(), cache_dtype="auto", **changes) -> str:
    """How an engine computes. hf: what its model's configuration says beyond THETA"""
    says = THETA | {"_name_or_path": "/models/m", "transformers_version": "5.0"} | dict(hf)
    fields = {
        "hf_config": Made(to_dict=lambda: says),
        "quantization": None,
        "quantization_config": None,
        "model_impl": "auto",
        "model_class_overrides": {},
        "disable_sliding_window": False,
    }
    return computation(Made(**fields | changes), Made(cache_dtype=cache_dtype), version)


def engine(role: str, boot: int, computes: str):
    """The manifest of an engine."""
    vllm_config, cache = configs("BHLNC")
    table = state_table(vllm_config, cache, cell=f"kv; {computes}")
    return replace(manifest(role, boot), table=table, guest=True)


@pytest.mark.parametrize(
    "hf",
    [
        {},
        {"_name_or_path": "/home/m"},
        {"transformers_version": "5.1"},
        {"text_config": {"hidden_size": 4, "_name_or_path": "/home/m"}},
    ],
)
def test_engines_that_compute_alike_fit_wherever_their_models_lie(hf) -> None:
    ours = how(hf={"text_config": {"hidden_size": 4}} if "text_config" in hf else {})
    require_fit(engine("decode", 3, ours), engine("prefill", 2, how(hf=hf)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "0.33.0"}, "vLLM 0.33.0"),
        ({"quantization": "fp8"}, "quantization fp8"),
        ({"cache_dtype": "fp8"}, "kv-cache-dtype fp8"),
        ({"hf": {"rope_theta": 1e6}}, "--hf-overrides"),
        ({"hf": {"text_config": {"sliding_window": 8}}}, "--hf-overrides"),
        ({"disable_sliding_window": True}, "config"),
        ({"model_impl": "transformers"}, "config"),
        ({"quantization_config": {"bits": 4}}, "config"),
        ({"model_class_overrides": {"A": "b:C"}}, "config"),
    ],
)
def test_engines_that_compute_otherwise_are_refused(changes, said) -> None:
    with pytest.raises(Mismatch) as refusal:
        require_fit(engine("decode", 3, how()), engine("prefill", 2, how(**changes)))
    assert said in str(refusal.value)
    assert "with the same version" in str(refusal.value)
