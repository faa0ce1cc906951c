"""What a mutant changes: one place of a syntax tree, by one operator.

    module ──places()──▶ Edit, Edit ..      edit.apply(): the tree is the mutant's; edit.undo(): it is what it was

Left out are places where a change is no mistake of the code's: docstrings, annotations, text for
people, assertions (`assert`, `if ..: raise Bug` and `strict=True`), what a `raise` says, counters
that nothing decides by, and bounds and tuning figures of a whole module.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
# by COMPARE already: a negation is the same mutant
FLIPPED = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
# told to people and to /metrics; nothing is decided by them
COUNTERS = {"marks", "_failures", "_spent", "_opened"}
FOR_PEOPLE = {"__repr__", "__str__"}
SMALL = 16  # beyond it one more or less is rarely a mistake that somebody makes
LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)


@dataclass(frozen=True)
class Edit:
    """One change. `statement` is the innermost that it lies in, by whose text it is known;
    `always`: runs at import."""

    operator: str
    statement: ast.stmt
    function: str  # qualified name, empty at the top of the module
    always: bool
    holder: ast.AST
    field: str
    index: int | None
    old: Any
    new: Any

    def apply(self) -> None:
        """Change the tree."""
        self._put(self.new)

    def undo(self) -> None:
        """Change it back."""
        self._put(self.old)

    def _put(self, node: Any) -> None:
        if self.index is None:
            setattr(self.holder, self.field, node)
        else:
            getattr(self.holder, self.field)[self.index] = node


@dataclass(frozen=True)
class _Place:
    """Where the walk is."""

    function: str
    always: bool  # at the top of a module or a class, or in a function whose results are cached
    inside: bool  # of a function
    types: dict[str, str]  # annotations of the function's arguments
    statement: ast.stmt


def places(tree: ast.Module) -> Iterator[Edit]:
    """Every change of a module, in the order of the source. No two of them change it in the same
    way."""
    seen: set[tuple[int, str]] = set()
    for edit in _body(tree, "body", _Place("", True, False, {}, ast.Pass())):
        change = (id(edit.statement), changed_text(edit))
        if change not in seen:
            seen.add(change)
            yield edit


def own_text(statement: ast.stmt) -> str:
    """A statement without those in it."""
    text = ast.unparse(statement)
    return text.split("\n")[0] if isinstance(getattr(statement, "body", None), list) else text


def changed_text(edit: Edit) -> str:
    """What becomes of the statement."""
    if edit.old is edit.statement:
        return ast.unparse(edit.new)
    edit.apply()
    text = own_text(edit.statement)
    edit.undo()
    return text


# ---- statements
# -----------------------------------------------------------------------------------


def _body(holder: ast.AST, field: str, place: _Place) -> Iterator[Edit]:
    for i, statement in enumerate(getattr(holder, field)):
        match statement:
            case ast.FunctionDef(name=name) if name not in FOR_PEOPLE:
                yield from _body(statement, "body", _within(statement, place))
            case ast.ClassDef(name=name):
                yield from _body(
                    statement, "body", _Place(_joined(place, name), True, False, {}, statement)
                )
            case (
                ast.Assert()
                | ast.FunctionDef()
                | ast.Import()
                | ast.ImportFrom()
                | ast.Expr(value=ast.Constant())
            ):
                continue
            case _ if not _counts(statement) and not _asserts(statement):
                here = _Place(place.function, place.always, place.inside, place.types, statement)
                if place.inside:
                    yield from _whole(statement, holder, field, i, here)
                yield from _parts(statement, here)


def _within(function: ast.FunctionDef, place: _Place) -> _Place:
    cached = any("cache" in ast.unparse(d) for d in function.decorator_list)
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    types = {a.arg: ast.unparse(a.annotation) for a in arguments if a.annotation is not None}
    return _Place(_joined(place, function.name), cached, True, types, function)


def _joined(place: _Place, name: str) -> str:
    return f"{place.function}.{name}" if place.function else name


def _counts(statement: ast.stmt) -> bool:
    """Whether the statement keeps a counter and does nothing else."""
    if not isinstance(statement, ast.AugAssign | ast.Expr):
        return False
    target = statement.target if isinstance(statement, ast.AugAssign) else statement.value
    return any(isinstance(node, ast.Attribute) and node.attr in COUNTERS for node in _spine(target))


def _asserts(statement: ast.stmt) -> bool:
    """Whether the statement looks for a bug of ours: without it, or with a narrower look, the right
    code is as right."""
    match statement:
        case ast.If(
            body=[ast.Raise(exc=ast.Call(func=ast.Name(id="Bug" | "Diverged")))], orelse=[]
        ):
            return True
        case ast.Raise(exc=ast.Call(func=ast.Name(id="Bug" | "Diverged"))):
            return True
    return False


def _spine(node: ast.AST) -> Iterator[ast.AST]:
    """a.b[c].d(..) from the right to the left."""
    while True:
        yield node
        match node:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(func=inner):
                node = inner
            case _:
                return


def _whole(
    statement: ast.stmt, holder: ast.AST, field: str, index: int, place: _Place
) -> Iterator[Edit]:
    """Changes that replace or remove a statement."""

    def edit(operator: str, new: ast.stmt) -> Edit:
        ast.copy_location(new, statement)
        return Edit(
            operator, statement, place.function, place.always, holder, field, index, statement, new
        )

    match statement:
        case ast.Expr(value=ast.Call()) if "super().__init__" not in ast.unparse(statement):
            yield edit("statement", ast.Pass())
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if not place.function.endswith(
            "__init__"
        ):
            yield edit("statement", ast.Pass())
        case ast.AugAssign() | ast.Delete() | ast.Raise():
            yield edit("statement", ast.Pass())
        case ast.Continue():
            yield edit("flow", ast.Break())
        case ast.Break():
            yield edit("flow", ast.Continue())
    last_of_several = (
        isinstance(holder, ast.If)
        and index > 0
        and isinstance(statement, ast.Return | ast.Continue | ast.Break)
    )
    if last_of_several:
        yield edit("flow", ast.Pass())


# ---- expressions
# ----------------------------------------------------------------------------------


def _parts(statement: ast.stmt, place: _Place) -> Iterator[Edit]:
    """Changes within a statement: of its own expressions, then of the statements in it."""
    for holder, field, index, node in _own_nodes(statement):
        for operator, new in _changes(holder, field, node, place):
            ast.copy_location(new, node)
            yield Edit(
                operator, statement, place.function, place.always, holder, field, index, node, new
            )
    for field in ("body", "orelse", "finalbody"):
        if isinstance(getattr(statement, field, None), list):
            yield from _body(statement, field, place)
    for inner in [*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]:
        yield from _body(inner, "body", place)


def _own_nodes(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """(holder, field, index, node) of every expression below, without nested statements and what is
    left out."""
    if isinstance(node, ast.Raise):
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "ctx"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(child, ast.AST) and not isinstance(
                child, ast.stmt | ast.JoinedStr | ast.ExceptHandler | ast.match_case
            ):
                if isinstance(child, ast.IfExp) and _is_text(child.body) and _is_text(child.orelse):
                    continue
                if (
                    isinstance(child, ast.keyword)
                    and child.arg == "strict"
                    and ast.unparse(child.value) == "True"
                ):
                    continue  # `zip` looks for a bug of ours
                yield node, field, index, child
                yield from _own_nodes(child)


def _is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _changes(
    holder: ast.AST, field: str, node: ast.AST, place: _Place
) -> Iterator[tuple[str, ast.expr]]:
    yield from _entries(holder, node, place)
    if not place.inside:
        return
    if field == "test" or (isinstance(holder, ast.comprehension) and field == "ifs"):
        yield from _conditions(holder, node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "condition", node.operand
    match node:
        case ast.Compare(left=left, ops=ops, comparators=right):
            for i, op in enumerate(ops):
                changed = [COMPARE[type(op)]() if j == i else o for j, o in enumerate(ops)]
                yield "compare", ast.Compare(left, changed, right)
        case ast.BoolOp(op=op, values=values):
            yield "boolean", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield "operand", ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
        case ast.Constant():
            yield from _constants(node)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC and not _joins(
            left, right
        ):
            yield "arithmetic", ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in SWAPPED:
            yield "minmax", ast.Call(ast.Name(SWAPPED[name], ast.Load()), args, keywords)
        case ast.Call(func=func, args=args, keywords=keywords):
            for i, (a, b) in enumerate(pairwise(args)):
                if _alike(a, b, place):
                    yield "arguments", ast.Call(func, [*args[:i], b, a, *args[i + 2 :]], keywords)
        case ast.Slice(lower=lower, upper=upper, step=step):
            if lower is not None:
                yield "slice", ast.Slice(None, upper, step)
            if upper is not None:
                yield "slice", ast.Slice(lower, None, step)


def _conditions(holder: ast.AST, test: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    assert isinstance(test, ast.expr)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield "condition", test.operand
    elif not (
        isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], FLIPPED)
    ):
        yield "condition", ast.UnaryOp(ast.Not(), test)
    if isinstance(holder, ast.comprehension):
        yield "guard", ast.Constant(True)
    elif isinstance(holder, ast.If) and not holder.orelse:
        leaves = isinstance(holder.body[-1], LEAVES)
        # a guard that lets all pass, or work that is done in any case
        yield "guard", ast.Constant(not leaves)


def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.expr]]:
    match node.value:
        case bool(value):
            yield "constant", ast.Constant(not value)
        case int(value) if 0 <= value <= SMALL:
            yield "constant", ast.Constant(value + 1)
            if value:
                yield "constant", ast.Constant(value - 1)
        case int(value) | float(value):
            yield "constant", ast.Constant(value * 2)


def _entries(holder: ast.AST, node: ast.AST, place: _Place) -> Iterator[tuple[str, ast.expr]]:
    """One entry less: of tables, sets, and what `in` looks into."""
    match node:
        case ast.Dict(keys=keys, values=values):
            for i in range(len(keys)):
                yield "entry", ast.Dict(keys[:i] + keys[i + 1 :], values[:i] + values[i + 1 :])
        case ast.Set(elts=elements) if len(elements) > 1:
            for i in range(len(elements)):
                yield "entry", ast.Set(elements[:i] + elements[i + 1 :])
        case ast.Tuple(elts=elements) if len(elements) > 1 and (
            isinstance(holder, ast.Compare) or _states(holder, place)
        ):
            for i in range(len(elements)):
                yield "entry", ast.Tuple(elements[:i] + elements[i + 1 :], ast.Load())


def _states(holder: ast.AST, place: _Place) -> bool:
    """Whether a tuple is a constant of the module that lists things by name, such as states."""
    return (
        not place.function
        and isinstance(holder, ast.Assign)
        and all(map(_named, getattr(holder.value, "elts", ())))
    )


def _named(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)


def _joins(left: ast.expr, right: ast.expr) -> bool:
    """Whether `+` joins text or lists: anything else of them is an error at once."""
    return any(
        _is_text(side) or isinstance(side, ast.List | ast.ListComp | ast.Tuple)
        for side in (left, right)
    )


def _alike(a: ast.expr, b: ast.expr, place: _Place) -> bool:
    """Whether two arguments are of one type, as far as the function's own annotations say."""
    match a, b:
        case ast.Name(id=one), ast.Name(id=other):
            return (
                one != other and one in place.types and place.types[one] == place.types.get(other)
            )
        case ast.Attribute(value=one, attr=field), ast.Attribute(value=other, attr=same):
            return field == same and ast.dump(one) != ast.dump(other)
    return False
