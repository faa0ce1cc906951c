"""Mutants by name: of every module of the core, and the known ones that change nothing.

    decode:Leader._on_offer:operand:3f9a12c4:1
    module : function           : operator : hash of the statement : which of that operator's changes of such statements

A name holds as long as the statement's text does: lines may move, and the rest of the function may
change.
"""

import ast
import hashlib
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mutation.operators import Edit, changed_text, own_text, places

ROOT = Path(__file__).parents[2]
CORE = ROOT / "src" / "baton" / "core"
EQUIVALENTS = Path(__file__).parent / "equivalents.toml"
STATISTICS = {"marks", "statistics"}  # modules that count for people and decide nothing


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    name: str
    module: str
    line: int
    change: str  # "what it was -> what it is", of the statement
    source: Path
    edit: Edit
    tree: ast.Module

    def code(self) -> str:
        """The module's source with the change, without comments."""
        self.edit.apply()
        try:
            return ast.unparse(self.tree)
        finally:
            self.edit.undo()


def of_module(path: Path) -> Iterator[Mutant]:
    """All mutants of a file."""
    tree = ast.parse(path.read_text())
    ordinals: Counter[str] = Counter()
    texts: dict[int, str] = {}
    for edit in places(tree):
        before = texts.setdefault(id(edit.statement), "") or own_text(edit.statement)
        texts[id(edit.statement)] = before
        known = hashlib.sha256(before.encode()).hexdigest()[:8]
        stem = f"{path.stem}:{edit.function}:{edit.operator}:{known}"
        ordinals[stem] += 1
        yield Mutant(
            name=f"{stem}:{ordinals[stem]}",
            module=path.stem,
            line=getattr(edit.old, "lineno", edit.statement.lineno),
            change=f"{before} -> {changed_text(edit)}",
            source=path,
            edit=edit,
            tree=tree,
        )


def files() -> list[Path]:
    """All modules of the core by name; no two have the same."""
    return sorted(
        (path for path in CORE.rglob("*.py") if path.stem != "__init__"), key=lambda path: path.stem
    )


def of_core(modules: Iterable[str] = ()) -> list[Mutant]:
    """All mutants of the core, or of these of its modules.

    Raises ValueError for a module that the core has not.
    """
    paths = {path.stem: path for path in files() if path.stem not in STATISTICS}
    if unknown := sorted(set(modules) - set(paths)):
        raise ValueError(
            f"the core has no module {', '.join(unknown)} to mutate; it has {', '.join(paths)}"
        )
    return [mutant for stem in modules or paths for mutant in of_module(paths[stem])]


def sample(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, drawn by a hash of seed and name: a change of the code replaces the mutants
    of what changed alone."""
    drawn = sorted(mutants, key=lambda m: hashlib.sha256(f"{seed} {m.name}".encode()).digest())
    return drawn[:count]


def equivalents(path: Path = EQUIVALENTS) -> dict[str, str]:
    """Names of mutants that no test can tell from the shipped code, and why."""
    return (
        {str(name): str(reason) for name, reason in tomllib.loads(path.read_text()).items()}
        if path.exists()
        else {}
    )
