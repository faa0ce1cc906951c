"""Laws of the source tree that the import contracts cannot see."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "baton"
FILES = sorted(SOURCE.rglob("*.py"))
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def _imported_from(tree: ast.AST, module: str) -> set[str]:
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }


def environment_reads(tree: ast.AST) -> list[int]:
    """Lines that touch the process's environment: `os.environ` and its kin, or the same names
    imported from os."""
    names = _imported_from(tree, "os") & ENVIRONMENT
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT)
        or (isinstance(node, ast.Name) and node.id in names)
    ]


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("import os\nos.environ['A']", [2]),
        ("import os as o\nx = o.getenv('A')", [2]),
        ("from os import environ\nenviron.get('A')", [2]),
        ("import os\nos.getpid()", []),
    ],
)
def test_the_environment_check_sees(code, lines):
    assert environment_reads(ast.parse(code)) == lines


def test_only_the_command_line_reads_the_environment():
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in FILES
        if "cli" not in path.relative_to(SOURCE).parts[:2]
        for line in environment_reads(ast.parse(path.read_text()))
    ]
    assert found == []


def test_every_package_has_an_import_contract():
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    bound = {
        source.removeprefix("baton.")
        for contract in contracts
        for source in contract.get("source_modules", ())
    }
    packages = {
        ".".join(path.relative_to(SOURCE).parts[:-1])
        for glob in ("*", "dev/*")
        for path in SOURCE.glob(f"{glob}/__init__.py")
    }
    # commands compose everything, so nothing is closed to them
    assert packages - bound == {"dev", "dev.cli"}


def test_every_folder_of_the_core_has_its_layer():
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())
    (layers,) = [
        c["layers"] for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers"
    ]
    named = {name.strip() for layer in layers for name in layer.split("|")}
    assert named >= {path.parent.name for path in (SOURCE / "core").glob("*/__init__.py")}


def test_no_two_public_classes_have_one_name():
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: there for name, there in places.items() if len(there) > 1} == {}


def test_every_public_method_is_described_where_it_is_declared_first():
    """By its own docstring, or by that of a base; of a class that has no such base, by that of some
    Protocol."""
    classes = {
        node.name: node
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }

    def described(of: ast.ClassDef) -> set[str]:
        own = {f.name for f in _functions(of) if ast.get_docstring(f)}
        return own.union(*(described(classes[base]) for base in _bases(of) if base in classes))

    ports = {
        name for node in classes.values() if "Protocol" in _bases(node) for name in described(node)
    }
    missing = [
        f"{node.name}.{function.name}"
        for node in classes.values()
        if not node.name.startswith("_")
        for function in _functions(node)
        if not function.name.startswith("_") and function.name not in described(node) | ports
    ]
    assert missing == []


def _functions(of: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in of.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _bases(of: ast.ClassDef) -> set[str]:
    """By their last names, without what they are generic in."""
    bare = [base.value if isinstance(base, ast.Subscript) else base for base in of.bases]
    return {
        base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in bare
    }


DRAWING = re.compile(r"[─▶◀▼▲│├└┴┬⊗]|\S {2,}\S|->")


def too_wide(line: str) -> bool:
    """Whether a line is wider than 100 columns, and no row of a drawing or of a table."""
    return len(line) > 100 and DRAWING.search(line.strip()) is None


@pytest.mark.parametrize(
    ("line", "wide"),
    [
        ("x" * 100, False),
        ("word " * 20 + "and one", True),
        ("    a ──▶ b" + " word" * 20, False),
        ("    name" + "    what it is" * 8, False),
    ],
)
def test_the_width_check_sees(line, wide):
    assert too_wide(line) == wide


def test_nothing_but_drawings_is_wider_than_100_columns():
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()[:60]}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if too_wide(line)
    ]
    assert found == []
