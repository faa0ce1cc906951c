"""Two workers that do not fit are told which field differs, what each has there, and what to do."""

from typing import Any

import msgspec
import pytest
from tests.core.build import manifest, table

from baton.core.errors import Mismatch
from baton.core.manifest import Manifest, require_fit

FREE = {"role", "page_blocks", "tp", "pp", "max_model_len", "ranks"}  # may differ


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("protocol", 99, "same version"),
        ("model", "other", "--served-model-name"),
        ("dtype", "bfloat16", "--dtype"),
        ("weights", "cd" * 16, "same checkpoint"),
        ("seal", False, "--seal"),
    ],
)
def test_the_field_both_values_and_the_remedy_are_named(field: str, value: Any, remedy: str) -> None:
    ours = manifest("decode", 1)
    theirs = msgspec.structs.replace(manifest("prefill", 2), **{field: value})
    require_fit(ours, manifest("prefill", 2))
    with pytest.raises(Mismatch) as raised:
        require_fit(ours, theirs)
    assert raised.value.field == field
    told = str(raised.value)
    assert repr(getattr(ours, field)) in told
    assert repr(value) in told
    assert remedy in told


def test_another_table_is_named_by_its_part() -> None:
    theirs = msgspec.structs.replace(manifest("prefill", 2), table=table(layers=3))
    with pytest.raises(Mismatch, match=r"table\.num_layers differs: ours is 2, theirs is 3: start both from the same checkpoint"):
        require_fit(manifest("decode", 1), theirs)


def test_every_field_is_compared_or_free_to_differ() -> None:
    from baton.core.manifest import MUST_AGREE

    assert set(Manifest.__struct_fields__) == set(MUST_AGREE) | FREE
