"""Modules of the core that are run from a syntax tree in place of their file, in a process that has
not imported them yet."""

import ast
import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

PACKAGE = "baton.core"


def module_of(path: Path) -> str:
    """The dotted name of a file of the core."""
    parts = path.with_suffix("").parts
    last = len(parts) - 1 - parts[::-1].index("core")
    return ".".join((PACKAGE, *parts[last + 1 :]))


class _Tree(SourceFileLoader):
    """Runs a tree as if it were the file's; neither reads nor writes bytecode."""

    def __init__(self, name: str, path: str, tree: ast.Module, names: Mapping[str, object]) -> None:
        super().__init__(name, path)
        self._tree, self._names = tree, names

    def get_code(self, fullname: str) -> CodeType:
        return compile(ast.fix_missing_locations(self._tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._names)
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def __init__(self, trees: Mapping[Path, ast.Module], names: Mapping[str, object]) -> None:
        self._trees = {module_of(path): (path, tree) for path, tree in trees.items()}
        self._names = names

    def find_spec(
        self, name: str, path: object, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._trees:
            return None
        file, tree = self._trees[name]
        return spec_from_file_location(name, file, loader=_Tree(name, str(file), tree, self._names))


def replace(trees: Mapping[Path, ast.Module], names: Mapping[str, object] = {}) -> None:
    """From now on this process imports these trees; each finds `names` among its globals.

    Raises RuntimeError if one of them has been imported already: it would be judged as it was.
    """
    if there := [path.stem for path in trees if module_of(path) in sys.modules]:
        raise RuntimeError(f"already imported: {', '.join(there)}")
    sys.meta_path.insert(0, _Finder(trees, names))
