"""Real, mutable objects as values: a small number stands for an object, equal numbers for objects
that are the same inside.

    number ──act(what, do)──▶ a copy of the object ──do──▶ number of what it has become, and what `do` returned

Each (object, act) is run once and remembered, so a search over the product of several objects costs
dictionary look-ups. What an object consists of is taken from the object, not listed here: a field
that is added to it counts from then on.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable
from enum import Enum
from types import FunctionType, MethodType
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from baton.core.handoff.plan import PairPlan
from baton.core.manifest import Manifest
from baton.core.memory.state import Placement, StateTable
from baton.core.scheduler.room import LeaderSettings

T = TypeVar("T")
R = TypeVar("R", bound=Hashable)

CONSTANT = (
    msgspec.msgpack.Encoder,
    Manifest,
    PairPlan,
    Placement,
    StateTable,
    LeaderSettings,
    FunctionType,
)
Copier = Callable[[Any, dict[int, Any]], Any]
_COPIERS: dict[type, Copier | None] = {}
# for operators: no decision looks at it
COUNTED = ("marks", "counts", "counted", "opened_epochs", "failures", "spent")
COUNTED += ("number", "_came")  # only where stamps of two gateways are equal: the models have one
PLAIN = (type(None), bool, int, float, str, bytes, Enum, type)


def clone(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy that shares nothing which can change."""
    memo = {} if memo is None else memo
    kind = type(value)
    if kind not in _COPIERS:
        _COPIERS[kind] = _copier(kind)
    copier = _COPIERS[kind]
    if copier is None:
        return value
    copied = memo.get(id(value))
    return copied if copied is not None else copier(value, memo)


def _copier(kind: type) -> Copier | None:
    """How objects of a kind are copied; None if they cannot change."""
    if issubclass(kind, (*PLAIN, *CONSTANT)) or (
        issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen
    ):
        return None
    if issubclass(kind, MethodType):
        return lambda value, memo: MethodType(value.__func__, clone(value.__self__, memo))
    if issubclass(kind, tuple | list | set | frozenset | deque):
        return lambda value, memo: memo.setdefault(id(value), kind(clone(v, memo) for v in value))
    if issubclass(kind, dict):
        return lambda value, memo: memo.setdefault(
            id(value), kind({clone(k, memo): clone(v, memo) for k, v in value.items()})
        )
    if issubclass(kind, np.ndarray | bytearray):
        return lambda value, memo: memo.setdefault(id(value), value.copy())
    if issubclass(kind, itertools.count):
        return lambda value, memo: memo.setdefault(id(value), itertools.count(_next(value)))
    return _clone_struct if issubclass(kind, msgspec.Struct) else _clone_object


def _clone_struct(value: Any, memo: dict[int, Any]) -> Any:
    fields = (getattr(value, name) for name in value.__struct_fields__)
    return memo.setdefault(id(value), type(value)(*(clone(v, memo) for v in fields)))


def _clone_object(value: Any, memo: dict[int, Any]) -> Any:
    # known before its fields are: its methods are among them
    copied = memo[id(value)] = object.__new__(type(value))
    for name, v in vars(value).items():
        setattr(copied, name, clone(v, memo))
    return copied


def _next(count: "itertools.count[int]") -> int:
    return int(repr(count).removeprefix("count(").removesuffix(")"))


class Digest:
    """What an object consists of, as a value that can be compared. Fields named in `forget` are
    left out."""

    def __init__(self, forget: Collection[str] = ()) -> None:
        self.forget = frozenset(forget)
        self._constants: dict[int, Any] = {}  # kept, so that an id is never used again
        self._frozen: dict[int, tuple[Any, Hashable]] = {}  # likewise
        self._readers: dict[type, Callable[[Any], Hashable]] = {}
        # objects of this digest, in the order in which they were met: many know each other
        self._seen: dict[int, int] = {}

    def __call__(self, value: Any) -> Hashable:
        self._seen.clear()
        return self._read(value)

    def _read(self, value: Any) -> Hashable:
        kind = type(value)
        reader = self._readers.get(kind)
        if reader is None:
            reader = self._readers[kind] = self._reader(kind)
        return reader(value)

    def _reader(self, kind: type) -> Callable[[Any], Hashable]:
        if issubclass(kind, Enum):
            return lambda value: value.name
        if issubclass(kind, PLAIN):
            return lambda value: value
        if issubclass(kind, CONSTANT):
            return lambda value: id(self._constants.setdefault(id(value), value))
        if issubclass(kind, MethodType):
            return lambda value: value.__name__
        if issubclass(kind, itertools.count):
            return repr
        if issubclass(kind, bytearray):
            return bytes
        if issubclass(kind, np.ndarray):
            return lambda value: (value.dtype.str, value.shape, value.tobytes())
        if issubclass(kind, set | frozenset):
            return lambda value: tuple(sorted(map(self._read, value), key=repr))
        if issubclass(kind, Counter):
            return lambda value: tuple(sorted(map(self._read, value.items()), key=repr))
        if issubclass(kind, dict):  # in its order, which may decide what is done first
            return lambda value: tuple([(self._read(k), self._read(v)) for k, v in value.items()])
        if issubclass(kind, tuple | list | deque):
            return lambda value: tuple([self._read(v) for v in value])
        if issubclass(kind, msgspec.Struct):
            return self._once if kind.__struct_config__.frozen else self._struct
        return self._object

    def _object(self, value: Any) -> Hashable:
        """Its fields; where it was met before in this digest, its number."""
        if (met := self._seen.get(id(value))) is not None:
            return met
        self._seen[id(value)] = len(self._seen)
        return type(value), *[
            self._read(v) for name, v in vars(value).items() if name not in self.forget
        ]

    def _struct(self, value: Any) -> Hashable:
        return type(value), *[
            self._read(getattr(value, name))
            for name in value.__struct_fields__
            if name not in self.forget
        ]

    def _once(self, value: Any) -> Hashable:
        """Of a struct that cannot change, which copies share."""
        found = self._frozen.get(id(value))
        if found is None:
            found = self._frozen[id(value)] = value, self._struct(value)
        return found[1]


class Objects(Generic[T]):
    """The objects of one kind met so far."""

    def __init__(self, digest: Callable[[T], Hashable]) -> None:
        self._digest = digest
        self._numbers: dict[Hashable, int] = {}
        self._objects: list[T] = []
        self._acts: dict[tuple[int, Hashable], tuple[int, Any]] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def __getitem__(self, number: int) -> T:
        """The object, to be looked at only."""
        return self._objects[number]

    def number(self, value: T) -> int:
        """Its number; from now on it belongs to this table."""
        found = self._digest(value)
        number = self._numbers.setdefault(found, len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        return number

    def act(self, number: int, what: Hashable, do: Callable[[T], R]) -> tuple[int, R]:
        """Do it to a copy. `what` stands for all that `do` depends on besides the object."""
        found = self._acts.get((number, what))
        if found is None:
            changed = clone(self._objects[number])
            result = do(changed)
            found = self._acts[number, what] = self.number(changed), result
        return found
