"""What is asked of a service that is planned: the requests of a trace, or a Poisson mix."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from baton.core.errors import ConfigError
from baton.core.ids import TokenId
from baton.dev.bench.schedule import arrivals
from baton.dev.bench.workload import MOONCAKE_BLOCK, TraceRow, trace_rows
from baton.dev.fleet.fleet import FleetRequest

OWN = 1 << 30  # tokens of a prompt that no block id stands for are its own: its number above this
ENDINGS = {".jsonl": "mooncake", ".csv": "azure"}


class MixPart(msgspec.Struct, frozen=True):
    """One kind of request in a mix. Lengths in tokens."""

    input_tokens: int
    output_tokens: int


class PoissonMix(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of several kinds, each as likely as the others.

    Attributes:
        rate: requests a second
        burstiness: 1 is Poisson, less comes in bursts
        range_ratio: lengths are spread evenly by this part of them to both sides
    """

    parts: tuple[MixPart, ...]
    rate: float
    count: int
    burstiness: float = 1.0
    range_ratio: float = 0.0

    def rows(self, seed: int) -> list[TraceRow]:
        """Return the requests.

        Raises:
            ConfigError: rate, burstiness or ratio is out of range
        """
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"--random-range-ratio {self.range_ratio}: it must be in [0, 1)")
        chance = random.Random(f"mix {seed}")
        due = arrivals(self.count, rate=self.rate, burstiness=self.burstiness, seed=seed)

        def length(middle: int) -> int:
            low, high = (round(middle * (1 + sign * self.range_ratio)) for sign in (-1, 1))
            return max(1, chance.randint(low, high))

        rows = []
        for number, at in enumerate(due):
            part = chance.choice(self.parts)
            rows.append(
                TraceRow(
                    number=number,
                    at_s=at,
                    input_tokens=length(part.input_tokens),
                    output_tokens=length(part.output_tokens),
                )
            )
        return rows


def mix_of(
    inputs: Sequence[int],
    outputs: Sequence[int],
    *,
    rate: float | None,
    count: int,
    burstiness: float,
    range_ratio: float,
) -> PoissonMix:
    """Return a mix of prompt lengths with the answer lengths at the same places.

    Raises:
        ConfigError: a length or the rate is missing, they are not equally many, or one is below 1
    """
    if not inputs or rate is None:
        raise ConfigError(
            "give a TRACE, or a mix: --random-input-len, --random-output-len and --request-rate"
        )
    if len(outputs) == 1:
        outputs = list(outputs) * len(inputs)
    if len(inputs) != len(outputs):
        raise ConfigError(
            f"--random-input-len has {len(inputs)} lengths, --random-output-len {len(outputs)}: "
            "give one answer length for each prompt length, or one for all"
        )
    for flag, values in (("--random-input-len", inputs), ("--random-output-len", outputs)):
        if low := [value for value in values if value < 1]:
            raise ConfigError(f"{flag} {low[0]}: a length is at least 1 token")
    if not 0 < rate < float("inf"):
        raise ConfigError(f"--request-rate {rate}: it must be above 0 and finite")
    parts = tuple(MixPart(i, o) for i, o in zip(inputs, outputs, strict=True))
    return PoissonMix(
        parts=parts, rate=rate, count=count, burstiness=burstiness, range_ratio=range_ratio
    )


def kind_of(path: Path, kind: str | None) -> str:
    """Return which kind of trace a file is: the one that was given, or what its name says.

    Raises:
        ConfigError: neither says it
    """
    found = kind or ENDINGS.get(path.suffix)
    if found is None:
        known = ", ".join(f"{ending} is {name}" for ending, name in ENDINGS.items())
        raise ConfigError(
            f"{path}: its name does not say what trace it is ({known}); "
            f"give --dataset-name {' or '.join(ENDINGS.values())}"
        )
    return found


def read_trace(
    path: Path, kind: str | None, *, count: int | None, length_scale: float, time_scale: float
) -> list[TraceRow]:
    """Return the requests of a trace in the order of their times, which count from the first.

    count: how many of them; None for all
    length_scale, time_scale: factors on their lengths, and on the times between them

    Raises:
        ConfigError: the file cannot be read, or its requests have no times
    """
    for flag, value in (("--length-scale", length_scale), ("--time-scale", time_scale)):
        if not value > 0:
            raise ConfigError(f"{flag} {value}: it must be above 0")
    rows = trace_rows(kind_of(path, kind), path, count)
    times = [row.at_s for row in rows if row.at_s is not None]
    if len(times) < len(rows):
        raise ConfigError(
            f"{path}: {len(rows) - len(times)} of its requests have no timestamp; "
            "a plan needs to know when each one comes"
        )
    start = min(times)
    scaled = (
        msgspec.structs.replace(
            row,
            at_s=(at - start) * time_scale,
            input_tokens=max(1, round(row.input_tokens * length_scale)),
            output_tokens=max(1, round(row.output_tokens * length_scale)),
        )
        for row, at in zip(rows, times, strict=True)
    )
    return sorted(scaled, key=_time_of)


def _time_of(row: TraceRow) -> float:
    assert row.at_s is not None, "requests of a plan have times"
    return row.at_s


def span_s(rows: Sequence[TraceRow]) -> float:
    """Return the seconds in which so many requests come: the mean gap follows the last one too."""
    first, last = _time_of(rows[0]), _time_of(rows[-1])
    return (last - first) * len(rows) / (len(rows) - 1) if len(rows) > 1 else 0.0


def requests(
    rows: Sequence[TraceRow], *, length_scale: float = 1.0, load: float = 1.0
) -> Iterator[FleetRequest]:
    """Return requests for a fleet. Their prompts are made when they are due, as those of a long
    trace do not fit in memory.

    load: factor on the rate at which they come
    """
    block = max(1, round(MOONCAKE_BLOCK * length_scale))
    for row in rows:
        tokens: list[TokenId] = []
        for name in row.hash_ids:
            if len(tokens) >= row.input_tokens:
                break
            tokens += [TokenId(name)] * min(block, row.input_tokens - len(tokens))
        tokens += [TokenId(OWN + row.number)] * (row.input_tokens - len(tokens))
        yield FleetRequest(round(1e6 * _time_of(row) / load), tuple(tokens), row.output_tokens)
