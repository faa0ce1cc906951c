"""What is asked of a service: prompts, the number of tokens to answer each with and, in a trace,
the times.

Prompts that a file does not spell out are token ids drawn from a seed, so that two runs ask the
same.
"""

import csv
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import msgspec

from baton.core.errors import ConfigError

T = TypeVar("T")

MOONCAKE_BLOCK = 512  # tokens behind one hash id of a Mooncake trace


class Item(msgspec.Struct, frozen=True):
    """One request. `at_s` is its arrival in a trace, counted from the trace's first; None if the
    workload has no times."""

    prompt: str | tuple[int, ...]
    output_tokens: int
    at_s: float | None = None


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How prompts are made from lengths.

    Attributes:
        low, high: prompts are token ids in [low, high)
        length_scale: factor on the lengths of a trace
        time_scale: factor on its arrival times
        output_tokens: used if a file does not give it
    """

    seed: int
    low: int
    high: int
    length_scale: float = 1.0
    time_scale: float = 1.0
    output_tokens: int = 128

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ConfigError(
                f"--token-ids {self.low}:{self.high}: give LOW:HIGH with 0 <= LOW < HIGH"
            )
        for flag, value in (
            ("--length-scale", self.length_scale),
            ("--time-scale", self.time_scale),
        ):
            if not value > 0:
                raise ConfigError(f"{flag} {value}: it must be above 0")


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a trace, as its file has it.

    Attributes:
        number: of its line
        at_s: when it came; None if the trace does not say
        hash_ids: of the blocks of MOONCAKE_BLOCK tokens that its prompt begins with
    """

    number: int
    at_s: float | None
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


class LengthRow(msgspec.Struct, frozen=True):
    """A row of a JSON-lines trace (Mooncake's fields): milliseconds, tokens, and one id for each
    block of the prompt."""

    input_length: int
    output_length: int
    timestamp: float | None = None
    hash_ids: tuple[int, ...] = ()


class PromptRow(msgspec.Struct, frozen=True):
    """A row of a JSON-lines file of prompts."""

    prompt: str | tuple[int, ...]
    output_tokens: int | None = None


def random_items(
    count: int,
    *,
    input_len: int,
    output_len: int,
    range_ratio: float,
    shape: Shape,
    purpose: str = "",
) -> list[Item]:
    """Return requests with lengths drawn evenly from [len * (1 - ratio), len * (1 + ratio)], and
    prompts without a common prefix; those of another purpose are others.

    Raises:
        ConfigError: the ratio is out of range
    """
    if not 0 <= range_ratio < 1:
        raise ConfigError(f"--random-range-ratio {range_ratio}: it must be in [0, 1)")
    chance = random.Random(f"{shape.seed} {input_len} {output_len} {purpose}")

    def length(middle: int) -> int:
        return max(
            1, chance.randint(round(middle * (1 - range_ratio)), round(middle * (1 + range_ratio)))
        )

    return [Item(_ids(chance, length(input_len), shape), length(output_len)) for _ in range(count)]


def file_items(kind: str, path: Path, count: int | None, shape: Shape) -> list[Item]:
    """Return the first `count` requests of a file (None = all).

    Raises:
        ConfigError: the file, or a line of it, cannot be read
    """
    if kind not in READERS:
        raise ConfigError(f"--dataset-name {kind}: there is random, {', '.join(READERS)}")
    return _read(f"--dataset-path {path}", path, count, lambda lines: READERS[kind](lines, shape))


def trace_rows(kind: str, path: Path, count: int | None) -> list[TraceRow]:
    """Return the first `count` requests of a trace (None = all), without their prompts.

    Raises:
        ConfigError: the file, or a line of it, cannot be read
    """
    if kind not in TRACE_READERS:
        raise ConfigError(f"--dataset-name {kind}: a trace is {' or '.join(TRACE_READERS)}")
    return _read(str(path), path, count, TRACE_READERS[kind])


def _read(
    name: str, path: Path, count: int | None, read: Callable[["_Lines"], Iterator[T]]
) -> list[T]:
    """Read a file. name: of the file, in errors"""
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            items = list(itertools.islice(read(_Lines(lines, name)), count))
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: {error}") from error
    if not items:
        raise ConfigError(f"{name}: it holds no requests")
    return items


class _Lines:
    """The lines of a file, which knows the number of the present line."""

    def __init__(self, lines: Iterator[str], name: str) -> None:
        self._lines, self._name, self.number = lines, name, 0

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.number += 1
            if line.strip():
                yield line

    def wrong(self, why: object) -> ConfigError:
        return ConfigError(f"{self._name}, line {self.number}: {why}")


def _prompts(lines: _Lines, shape: Shape) -> Iterator[Item]:
    decoder = msgspec.json.Decoder(PromptRow)
    for line in lines:
        try:
            row = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise lines.wrong(error) from error
        yield Item(row.prompt, row.output_tokens or shape.output_tokens)


def _mooncake(lines: _Lines) -> Iterator[TraceRow]:
    decoder = msgspec.json.Decoder(LengthRow)
    for line in lines:
        try:
            row = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise lines.wrong(error) from error
        yield TraceRow(
            number=lines.number,
            at_s=None if row.timestamp is None else row.timestamp / 1e3,
            input_tokens=row.input_length,
            output_tokens=row.output_length,
            hash_ids=row.hash_ids,
        )


def _azure(lines: _Lines) -> Iterator[TraceRow]:
    for row in csv.DictReader(lines):
        try:
            yield TraceRow(
                number=lines.number,
                at_s=datetime.fromisoformat(row["TIMESTAMP"]).timestamp(),
                input_tokens=int(row["ContextTokens"]),
                output_tokens=int(row["GeneratedTokens"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise lines.wrong(
                f"{error}; wanted are TIMESTAMP, ContextTokens, GeneratedTokens"
            ) from error


TRACE_READERS = MappingProxyType({"mooncake": _mooncake, "azure": _azure})


def _items(rows: Iterator[TraceRow], shape: Shape) -> Iterator[Item]:
    """Return the requests of a trace, with prompts made of its lengths and blocks."""
    start: float | None = None
    for row in rows:
        start = row.at_s if start is None else start
        prompt = _shared(row.hash_ids, row.number, _scaled(row.input_tokens, shape), shape)
        yield Item(prompt, _scaled(row.output_tokens, shape), _since(start, row.at_s, shape))


READERS: Mapping[str, Callable[[_Lines, Shape], Iterator[Item]]] = MappingProxyType(
    {
        "custom": _prompts,
        "mooncake": lambda lines, shape: _items(_mooncake(lines), shape),
        "azure": lambda lines, shape: _items(_azure(lines), shape),
    }
)


def _since(start: float | None, at: float | None, shape: Shape) -> float | None:
    return None if at is None or start is None else (at - start) * shape.time_scale


def _scaled(length: int, shape: Shape) -> int:
    return max(1, round(length * shape.length_scale))


def _shared(blocks: Sequence[int], number: int, length: int, shape: Shape) -> tuple[int, ...]:
    """Return a prompt in which equal block ids give equal tokens. Tokens that the blocks do not
    fill are the request's own."""
    size, ids = _scaled(MOONCAKE_BLOCK, shape), list[int]()
    for block in blocks:
        if len(ids) >= length:
            break
        ids += _ids(
            random.Random(f"{shape.seed} block {block}"), min(size, length - len(ids)), shape
        )
    return (*ids, *_ids(random.Random(f"{shape.seed} row {number}"), length - len(ids), shape))


def _ids(chance: random.Random, length: int, shape: Shape) -> tuple[int, ...]:
    return tuple(chance.randrange(shape.low, shape.high) for _ in range(length))
