"""Mutants of the core: what is changed and what is not, names that hold, and judges that come to an
end."""

import ast
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from mutation.gate import (
    CRASHED,
    NOBODY,
    SIMULATION,
    TESTS,
    TOO_LONG,
    Judging,
    Verdict,
    by_tests,
    by_worlds,
)
from mutation.judges import TESTS as TEST_PATHS
from mutation.mutants import CORE, ROOT, equivalents, files, of_core, of_module, sample
from mutation.operators import places
from mutation.processes import Ended, Job, Pool
from mutation.reach import Reach, _Probes
from mutation.report import Count, counted, interval, markdown, survivors


def changes(source):
    """(operator, the whole source as it becomes) of every mutant."""
    tree = ast.parse(source)
    found = []
    for edit in places(tree):
        edit.apply()
        found.append((edit.operator, ast.unparse(tree)))
        edit.undo()
        assert ast.unparse(tree) == ast.unparse(ast.parse(source)), "undone"
    return found


def becomes(line, arguments="a, b, c, x"):
    """What becomes of one line of a function, by operator."""
    head = f"def f({arguments}):\n    "
    return {(operator, text.removeprefix(head)) for operator, text in changes(head + line)}


# ---- what is changed
# --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a < b", {("compare", "return a <= b")}),
        (
            "return a < b == c",
            {("compare", "return a <= b == c"), ("compare", "return a < b != c")},
        ),
        ("return a in b", {("compare", "return a not in b")}),
        (
            "return a and b",
            {("boolean", "return a or b"), ("operand", "return a"), ("operand", "return b")},
        ),
        ("return not a", {("condition", "return a")}),
        ("return True", {("constant", "return False")}),
        ("return 0", {("constant", "return 1")}),
        ("return 2", {("constant", "return 1"), ("constant", "return 3")}),
        ("return 1000", {("constant", "return 2000")}),
        ("return a + b", {("arithmetic", "return a - b")}),
        ("return a | b", {("arithmetic", "return a & b")}),
        ("return min(a, b)", {("minmax", "return max(a, b)")}),
        ("return a[b:c]", {("slice", "return a[:c]"), ("slice", "return a[b:]")}),
        ("return {a: b, b: c}", {("entry", "return {b: c}"), ("entry", "return {a: b}")}),
        ("return {a, b}", {("entry", "return {b}"), ("entry", "return {a}")}),
        (
            "return a in (b, c)",
            {
                ("compare", "return a not in (b, c)"),
                ("entry", "return a in (c,)"),
                ("entry", "return a in (b,)"),
            },
        ),
        ("a.go(b)", {("statement", "pass")}),
        ("a.b = c", {("statement", "pass")}),
        ("a += b", {("statement", "pass")}),
        ("del a[b]", {("statement", "pass")}),
        ("raise ValueError(1 + 1)", {("statement", "pass")}),
        (
            "return [a for a in b if c]",
            {
                ("condition", "return [a for a in b if not c]"),
                ("guard", "return [a for a in b if True]"),
            },
        ),
    ],
)
def test_a_line_and_what_may_become_of_it(line, expected):
    assert becomes(line) == expected


def test_a_guard_lets_all_pass_and_work_is_done_in_any_case():
    assert {"guard", "condition"} == {
        op for op, _ in changes("def f(a):\n    if a:\n        return\n    while a:\n        x = a")
    }
    assert ("guard", "if False:\n        return") in becomes("if a:\n        return")
    assert ("guard", "if True:\n        b.go()") in becomes("if a:\n        b.go()")


def test_loops_are_left_early_and_late():
    found = becomes("for a in b:\n        continue")
    assert ("flow", "for a in b:\n        break") in found
    found = becomes("if a:\n        x = b\n        return x")
    assert ("flow", "if a:\n        x = b\n        pass") in found


def test_arguments_of_one_type_change_places():
    found = becomes("return x(a, b, c)", "a: Page, b: Page, c: Key, x: Any")
    assert found == {("arguments", "return x(b, a, c)")}


@pytest.mark.parametrize(
    "source",
    [
        '"""Text 1 + 1."""',
        "LIMIT = 1024",
        "class A:\n    x: int = 1 + 1",
        "def f(a: int | None, b=1 + 1) -> int | None:\n    ...",
        "def __repr__(self):\n    return 1 + 1",
        "def f(a):\n    assert a > 1, a + 1",
        "def f(a):\n    if a > 1:\n        raise Bug(f'{a + 1}')",
        "def f(a, b):\n    return zip(a, b, strict=True)",
        "def f(self):\n    self.marks[Mark.X] += 1",
        "def f(a, b):\n    return f'{a + 1} of {b - 1}'",
        "import a\nfrom a import b",
    ],
)
def test_what_is_no_mistake_is_left_alone(source):
    assert changes(source) == []


def test_tables_of_a_module_lose_an_entry():
    assert [op for op, _ in changes("T = {A.x: 1, A.y: 2}\nS = (A.x, A.y)")] == ["entry"] * 4


def test_no_two_mutants_are_the_same_and_every_one_compiles():
    for path in (CORE / "rank" / "read_queue.py", CORE / "memory" / "pages.py"):
        codes = [mutant.code() for mutant in of_module(path)]
        assert len(codes) > 50
        assert len(set(codes)) == len(codes)
        assert path.read_text() not in codes
        for code in codes:
            compile(code, str(path), "exec")


# ---- names
# ------------------------------------------------------------------------------------------


def named(tmp_path, source):
    path = tmp_path / "one.py"
    path.write_text(source)
    return [mutant.name for mutant in of_module(path)]


def test_names_hold_when_lines_move_and_other_statements_change(tmp_path):
    before = named(tmp_path, "def f(a, b):\n    b.go()\n    return a < 2\n")
    after = named(
        tmp_path,
        "X = 7\n\n\ndef f(a, b):\n    b.come(a)\n    b.stay()\n    # why\n    return a < 2\n",
    )
    assert len(before) == len(set(before)) == 4
    kept = {name for name in before if ":statement:" not in name}
    assert len(kept) == 3
    assert kept < set(after)


def test_a_changed_statement_has_other_names(tmp_path):
    assert not set(named(tmp_path, "def f(a):\n    return a < 2\n")) & set(
        named(tmp_path, "def f(a):\n    return a < 3\n")
    )


def test_a_sample_is_the_same_again_and_part_of_a_larger_one():
    mutants = of_core(["early", "page_reservations"])
    ten = [m.name for m in sample(mutants, 10, 0)]
    assert ten == [m.name for m in sample(reversed(mutants), 10, 0)]
    assert ten == [m.name for m in sample(mutants, 20, 0)][:10]
    assert set(ten) != {m.name for m in sample(mutants, 10, 1)}
    with pytest.raises(ValueError, match=r"no module statistics.*early"):
        of_core(["statistics"])


def test_every_excused_mutant_has_a_name_and_a_reason():
    """Whether it is still there, the gate says: a change of the core need not wait for that."""
    for name, reason in equivalents().items():
        module, _, operator, statement, ordinal = name.split(":")
        assert module in {path.stem for path in files()}
        assert (operator.isalpha(), len(statement), ordinal.isdigit()) == (True, 8, True)
        assert len(reason) > 20


# ---- judges
# -----------------------------------------------------------------------------------------


def ended(work, cpu_s=30.0):
    pool = Pool(1)
    pool.add(Job("one", work, cpu_s))
    [(_, found)] = list(pool.results())
    return found


def spin(say):
    say(5)
    while True:
        pass


def raises(say):
    say(5)
    raise MemoryError("no more")


def test_a_child_says_what_it_finds():
    found = ended(lambda say: [say(word) for word in (1, {"invariant": "liveness"})])
    assert (found.said, found.code, found.out_of_time) == ([1, {"invariant": "liveness"}], 0, False)
    assert by_worlds(found) == ("liveness", 1)


def test_a_child_that_goes_on_for_ever_is_ended_by_its_time_of_the_processor():
    found = ended(spin, cpu_s=0.5)
    assert (found.said, found.out_of_time) == ([5], True)
    assert by_worlds(found) == (TOO_LONG, 5)
    assert by_tests(Ended([], found.code, found.late, 0.0)) == TOO_LONG


def test_a_child_that_dies_has_found_something():
    assert by_worlds(ended(raises)) == (CRASHED, 5)
    assert by_worlds(ended(lambda say: os._exit(9))) == (CRASHED, None)
    assert by_tests(ended(lambda say: os.kill(os.getpid(), signal.SIGKILL))) == CRASHED


def test_what_pytest_says_of_a_mutant():
    def end(*said):
        return Ended(list(said), 0, False, 0.0)

    assert by_tests(end({"code": 0})) == ""
    assert by_tests(end({"code": 5})) == "", "no test was there to run"
    assert by_tests(end({"test": "tests/a.py::b"}, {"code": 1})) == "tests/a.py::b"
    assert by_tests(end({"code": 3})) == CRASHED
    assert by_worlds(end(0, 1, {"invariant": ""})) == ("", None)


def test_closing_ends_children():
    pool = Pool(1)
    pool.add(Job("one", lambda say: (say(os.getpid()), time.sleep(600)), 60.0))
    pool._start(pool._waiting.popleft())
    [child] = [child.pid for child in pool._children.values()]
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


JUDGES = """
import json
from mutation.gate import Judging
from mutation.mutants import of_core
mutants = of_core(["early", "session"])
chosen = [next(m for m in mutants if text in m.change) for text in TEXTS]
judging = Judging(chosen, lambda m: range(20) if m is chosen[0] else [], lambda m: ["tests/core/handoff/test_early.py"], {}, 2)
judging.run(lambda v: print(json.dumps([chosen.index(next(m for m in chosen if m.name == v.name)), v.found_by, v.how])))
"""


def test_a_mutant_is_found_by_the_simulator_or_by_its_tests_and_no_file_changes():
    """One that every world trips over, one that no world shows, and one that does what the shipped
    code does."""
    before = (CORE / "handoff" / "early.py").read_text()
    texts = [
        "if waiting is None: -> if waiting is not None:",
        "len(waiting.offers) > OFFERS",
        "promised.until <= soonest:",
    ]
    said = subprocess.run(
        [sys.executable, "-c", JUDGES.replace("TEXTS", repr(texts))],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'tools'}:{ROOT / 'src'}"},
        check=True,
        stdout=subprocess.PIPE,
        timeout=100,
    ).stdout
    found = {which: (by, how) for which, by, how in map(json.loads, said.splitlines())}
    assert found[0][0] == SIMULATION
    assert (found[1][0], found[1][1].split("::")[0]) == (TESTS, "tests/core/handoff/test_early.py")
    assert found[2] == (NOBODY, "")
    assert (CORE / "handoff" / "early.py").read_text() == before


def test_a_process_that_has_the_core_already_judges_nothing():
    importlib.import_module("baton.core.handoff.early")
    with pytest.raises(RuntimeError, match=r"has imported baton\.core"):
        Judging([], lambda mutant: [], lambda mutant: [], {}, 1)


# ---- which worlds and tests
# -------------------------------------------------------------------------


def test_probes_stand_before_every_statement_and_change_nothing(tmp_path):
    path = tmp_path / "one.py"
    path.write_text(
        "def f(a):\n    if a:\n        return 1\n    elif a is None:\n        x = 2\n        "
        "return x\n    return 3\n"
    )
    probes = _Probes([path])
    names = {"__reached__": probes.hits}
    exec(compile(ast.fix_missing_locations(probes.trees[path]), "one", "exec"), names)
    assert (names["f"](1), probes.take()) == (1, ["one:2", "one:3"])
    assert (names["f"](None), sorted(probes.take())) == (2, ["one:2", "one:4", "one:5", "one:6"])
    assert (names["f"](0), sorted(probes.take())) == (3, ["one:2", "one:4", "one:7"])
    assert probes.take() == []


def test_tests_that_reach_a_mutant_its_own_file_first_and_no_more_than_fit_in_the_time():
    seconds = {
        "tests/core/handoff/test_early.py::a": 5.0,
        "tests/x.py::quick": 1.0,
        "tests/x.py::slow": 9.0,
        "tests/y.py::other": 1.0,
    }
    reach = Reach(
        {}, 5, seconds, {"early:7": list(seconds)[:3]}, {"early:8": ["tests/x.py"]}, {"early:9"}
    )

    def at(line, always=False):
        return SimpleNamespace(
            module="early",
            edit=SimpleNamespace(always=always, statement=SimpleNamespace(lineno=line)),
        )

    assert reach.tests_of(at(7), 60) == [
        "tests/core/handoff/test_early.py::a",
        "tests/x.py::quick",
        "tests/x.py::slow",
    ]
    assert reach.tests_of(at(7), 7) == ["tests/core/handoff/test_early.py::a", "tests/x.py::quick"]
    assert reach.tests_of(at(8), 60) == ["tests/x.py::quick", "tests/x.py::slow"], (
        "a fixture of the file reaches it"
    )
    assert len(reach.tests_of(at(9), 60)) == len(reach.tests_of(at(6, always=True), 60)) == 4
    assert reach.tests_of(at(6), 60) == []
    assert (list(reach.seeds_of(at(6))), list(reach.seeds_of(at(6, always=True)))) == (
        [],
        [0, 1, 2, 3, 4],
    )


# ---- what is said
# -----------------------------------------------------------------------------------


def verdict(module, found_by, change="a -> b"):
    return Verdict(f"{module}:f:compare:0:1", module, 3, change, found_by, "how", None, 7, 8, 1.0)


def test_the_table_counts_by_module():
    verdicts = [
        verdict("a", SIMULATION),
        verdict("b", SIMULATION),
        verdict("b", TESTS),
        verdict("b", NOBODY),
    ]
    assert counted(verdicts) == Count(4, 2, 3)
    assert markdown(verdicts).splitlines()[2:] == [
        "| `b` | 3 | 1 (33%) | 1 | 1 |",
        "| `a` | 1 | 1 (100%) | 0 | 0 |",
        "| **all** | 4 | 2 (50%) | 1 | 1 |",
    ]
    [line] = survivors(verdicts)
    assert "7 worlds and 8 tests reach it" in line
    low, high = interval(0.5, 100)
    assert (round(low, 3), round(high, 3)) == (0.404, 0.596)
    assert json.loads(json.dumps(interval(1.0, 0))) == [0.0, 1.0]


def test_the_tests_that_judge_are_there():
    assert [name for name in TEST_PATHS if not (ROOT / name).exists()] == []
