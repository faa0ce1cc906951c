"""The explorer itself: it finds what is planted in systems small enough to check by hand."""

import pytest

from .explore import Step, System, explore

Graph = dict[str, str]  # state -> states it leads to; a trailing ! is a fault


class Drawn(System[str]):
    """A system written down as a graph that begins at `a` and ends at `z`; `X` is wrong."""

    def __init__(self, graph: Graph, owes: str = "abcdefghijklmnopqrstuvwxyz") -> None:
        self.graph, self.owing = graph, owes

    def start(self) -> str:
        return "a"

    def steps(self, state: str) -> list[Step[str]]:
        return [
            Step(("to", word[0]), word[0], word.endswith("!"))
            for word in self.graph.get(state, "").split()
        ]

    def done(self, state: str) -> bool:
        return state == "z"

    def wrong(self, state: str) -> str:
        return "X is wrong" if state == "X" else ""

    def owes(self, state: str) -> bool:
        return state in self.owing


def test_a_good_system_is_seen_whole() -> None:
    found = explore(Drawn({"a": "b c", "b": "d", "c": "d a", "d": "z"}))
    assert (found.states, found.edges, found.depth, found.done, found.bad) == (5, 6, 3, 1, None)


def test_a_wrong_state_is_found_by_the_shortest_way() -> None:
    found = explore(Drawn({"a": "b c", "b": "d", "d": "e", "e": "X", "c": "f", "f": "X", "z": ""}))
    assert found.bad is not None
    assert found.bad.steps == ("to c", "to f", "to X")
    assert str(found.bad).splitlines() == [
        "X is wrong, after 3 steps:",
        "  1. to c",
        "  2. to f",
        "  3. to X",
    ]


def test_a_wrong_beginning_is_a_story_without_steps() -> None:
    system = Drawn({"a": "z"})
    system.wrong = lambda state: "born wrong"  # type: ignore[method-assign]
    assert str(explore(system).bad) == "born wrong, after 0 steps:"


def test_a_deadlock_is_found() -> None:
    found = explore(Drawn({"a": "z b", "b": "c"}))
    assert found.bad is not None
    assert (found.bad.why, found.bad.steps) == ("nothing more can happen", ("to b", "to c"))


def test_a_livelock_is_found_where_it_begins() -> None:
    found = explore(Drawn({"a": "z b", "b": "c", "c": "b d", "d": "c"}))
    assert found.bad is not None
    assert (found.bad.why, found.bad.steps) == ("no end can be reached any more", ("to b",))


@pytest.mark.parametrize(
    ("graph", "why"), [({"a": "z!"}, "nothing more"), ({"a": "b z!", "b": "a"}, "no end")]
)
def test_no_end_is_owed_to_a_fault(graph: Graph, why: str) -> None:
    found = explore(Drawn(graph))
    assert found.bad is not None
    assert found.bad.why.startswith(why)


def test_a_state_that_owes_nothing_may_be_stuck_and_its_past_may_not_count_on_it() -> None:
    assert explore(Drawn({"a": "z b!", "b": "c"}, owes="a")).bad is None
    found = explore(Drawn({"a": "b z!", "b": "c"}, owes="a"))
    assert found.bad is not None
    assert found.bad.steps == ()


def test_an_end_may_go_on() -> None:
    assert explore(Drawn({"a": "z", "z": "a"})).bad is None


def test_too_many_states_are_an_error_and_not_a_pass() -> None:
    with pytest.raises(AssertionError, match="more than 3 states"):
        explore(Drawn({"a": "b", "b": "c", "c": "d", "d": "z"}), most=3)
