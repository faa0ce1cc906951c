"""Many JSON schemas in the families of JSONSchemaBench: what is drawn from them is valid."""

from collections import Counter

import pytest
from tests.grammar.walk import drawn, grammar, vocabulary, wrong

from baton.core.matchers import GrammarError
from baton.dev.schemas import FAMILIES, schema
from baton.grammar import request as make
from baton.grammar.check import check


def outcomes(seed: int, walks: int) -> Counter[str]:
    """What becomes of the schema of a seed, and of answers to it."""
    family, said = schema(seed)
    try:
        text = make.json_schema(said)
        check(grammar(text), vocabulary())
    except GrammarError as e:
        return Counter([f"refused: {e}"])
    found: Counter[str] = Counter()
    for walk in range(walks):
        answer = drawn(text, walk)
        found["cut" if answer is None else "valid"] += 1
        if answer is not None and (why := wrong(said, answer)):
            pytest.fail(f"seed {seed} ({family}): {answer} is drawn from {said}, but {why}")
    return found


def judge(found: Counter[str], walks: int) -> None:
    """Most answers end; what is refused is refused by name."""
    refused = {what: n for what, n in found.items() if what.startswith("refused")}
    known = ("not implemented", "oneOf must", "nsatisfiable", "maxProperties")
    assert [w for w in refused if not any(k in w for k in known)] == []
    assert sum(refused.values()) < 0.3 * found["valid"] / walks
    assert found["cut"] < 0.05 * found["valid"]


def test_answers_to_schemas_of_all_families_are_valid():
    judge(sum((outcomes(seed, 2) for seed in range(60)), Counter()), 2)


@pytest.mark.slow
def test_answers_to_a_thousand_schemas_are_valid():
    judge(sum((outcomes(seed, 6) for seed in range(1000)), Counter()), 6)


def test_a_seed_gives_one_schema_and_families_take_turns():
    names = [schema(seed)[0] for seed in range(20)]
    assert names[:10] == names[10:] == [family.name for family in FAMILIES]
    assert schema(17) == schema(17)
    assert len({str(schema(seed)[1]) for seed in range(200)}) > 190
