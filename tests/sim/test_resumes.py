"""The book of what prompts go on from: what it lets pass, and what it finds."""

import pytest
from msgspec.structs import replace
from tests.core.build import key, ticket

from baton.core.agreement import Keep, Resume
from baton.core.ids import CheckpointName
from baton.dev.sim.resumes import Resumes
from baton.dev.sim.world import Violation

NAME = CheckpointName(7)


def made(
    length: int = 5,
    *,
    computed: int | None = None,
    kept: int | None = None,
    one_length: bool = False,
) -> Resumes:
    """A book with a prompt that was kept, whose tokens are 1, 2, ... length, as its answer's are."""

    def violate(invariant: str, detail: str) -> None:
        raise Violation(invariant, detail)

    tickets = {key(1): ticket(1, length=length)}
    found = Resumes(tickets, set(), violate)
    stamps = list(range(length if computed is None else computed))
    order = Keep(1, NAME, key(1), length if kept is None else kept)
    found.kept(order, range(1, len(stamps) + 1), stamps, stamps, one_length=one_length)
    return found


def begin(book: Resumes, *, length: int, at: int, salt: str = "", name: int = NAME) -> None:
    asked = replace(ticket(2, length=length), cache_salt=salt)
    book._tickets[key(2)] = asked  # type: ignore[index]
    book.begins(Resume(2, CheckpointName(name), key(2), at))


def test_a_prompt_goes_on_from_its_own_beginning() -> None:
    book = made()
    assert book.of(key(2)) is None
    begin(book, length=6, at=5)
    kept = book.of(key(2))
    assert kept is not None
    assert kept.stamps == (0, 1, 2, 3, 4)
    book.vacated(key(2))
    assert book.of(key(2)) is None


@pytest.mark.parametrize(
    ("about", "invariant"),
    [
        ({"length": 6, "at": 4}, "right_resume"),
        ({"length": 9, "at": 6}, "right_resume"),
        ({"length": 4, "at": 5}, "right_resume"),
        ({"length": 6, "at": 5, "name": 8}, "right_resume"),
        ({"length": 6, "at": 5, "salt": "s"}, "own_salt"),
        ({"length": 5, "at": 5}, "hit_leaves_a_token"),
    ],
)
def test_it_finds_whatever_is_not_its_own(about: dict, invariant: str) -> None:
    with pytest.raises(Violation) as found:
        begin(made(), **about)
    assert found.value.invariant == invariant


def test_a_prompt_goes_on_from_an_answer() -> None:
    book = made(computed=8, kept=7)
    begin(book, length=9, at=7)
    kept = book.of(key(2))
    assert kept is not None
    assert kept.tokens == (1, 2, 3, 4, 5, 6, 7)
    with pytest.raises(Violation):
        begin(book, length=7, at=7)


@pytest.mark.parametrize(
    "about",
    [{"computed": 4}, {"kept": 4}, {"kept": 6}, {"computed": 6, "one_length": True}],
    ids=str,
)
def test_only_what_is_computed_of_a_prompt_and_its_answer_is_kept(about: dict) -> None:
    with pytest.raises(Violation) as found:
        made(**about)
    assert found.value.invariant == "right_resume"


def test_what_is_computed_above_damage_is_judged_no_more() -> None:
    book = made()
    book._tainted.add(key(1))
    order = Keep(2, CheckpointName(9), key(1), 5)
    book.kept(order, range(1, 6), range(5), range(5), one_length=True)
    begin(book, length=6, at=5, name=9)
    assert key(2) in book._tainted
