"""Reads calls that a model writes as Python: `[f(a=1), g(b="x")]`, or one call on each line.

They are parsed, never run.
"""

import ast
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from baton.gateway.tool_calls import Malformed

# Models also write the constants of JSON.
NAMES: Mapping[str, bool | None] = MappingProxyType({"true": True, "false": False, "null": None})


def pythonic_calls(text: str) -> list[dict[str, Any]]:
    """Return the calls as objects with `name` and `arguments`.

    Raises:
        Malformed: the text is something else, or an argument is not a constant with its name
    """
    try:
        body = ast.parse(text.strip()).body
        return [_call(node) for statement in body for node in _each(statement)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise Malformed from e


def _each(statement: ast.stmt) -> list[ast.expr]:
    if not isinstance(statement, ast.Expr):
        raise Malformed
    value = statement.value
    return value.elts if isinstance(value, ast.List) else [value]


def _call(node: ast.expr) -> dict[str, Any]:
    if not isinstance(node, ast.Call) or node.args:
        raise Malformed
    if not isinstance(node.func, ast.Name | ast.Attribute):
        raise Malformed
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise Malformed
        arguments[keyword.arg] = _value(keyword.value)
    return {"name": ast.unparse(node.func), "arguments": arguments}


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in NAMES:
            return NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {_key(k): _value(v) for k, v in zip(keys, values, strict=True)}
        case _:
            raise Malformed


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise Malformed
