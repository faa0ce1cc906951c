"""What the live page shows: the cluster as it is now, in one struct of bounded size.

    workers ──ledgers──▶ ┐
    core ──requests, pairs──▶ LiveView.look ──LiveSnapshot, as JSON──▶ LiveFeed (live_feed.py) ──▶ watchers
    dispatcher, tally ──▶ ┘

It holds counts, names and states, never a prompt or an answer. It asks the workers for ledgers that
are not audited, and reads the rest where it is; it changes nothing.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from baton import __version__
from baton.core.door import FrontView, PairView, RequestView
from baton.core.ids import Epoch, GroupName, Room
from baton.core.messages import Credits, LedgerView, RoomView
from baton.gateway.counts import GatewayCounts, Siblings
from baton.gateway.dispatcher import DispatchedRequest, Dispatcher
from baton.gateway.door import Door, LedgerReport, Readiness
from baton.gateway.live_times import LiveTimes, Quantiles
from baton.gateway.phases import RequestPhase, phase_of
from baton.gateway.timelines import Timelines
from baton.gateway.verdict import SlowVerdict

MOST_LANES = 200  # requests
MOST_PAIRS = 200
MOST_WORKERS = 100
MOST_SLOW, SLOW_WITHIN_S = 5, 300.0  # requests that have ended, and how long ago at most


class LiveRank(msgspec.Struct, frozen=True):
    """One rank process; `boot` in hex."""

    rank: int
    boot: str


class LiveWorker(msgspec.Struct, frozen=True):
    """One worker.

    Attributes:
        answers: False: it has not answered in time, and the rest is not known
        pages: number of pages by group and state, and `total`
        rooms: number of rooms by state
        cache_queries, cache_hits: tokens of prompts, since it started
        pins, reads: pins on cached pages; reads of another worker's memory under way
    """

    name: str
    role: str = ""
    answers: bool = True
    draining: bool = False
    ranks: tuple[LiveRank, ...] = ()
    pages: dict[str, dict[str, int]] = {}
    rooms: dict[str, int] = {}
    cache_queries: int = 0
    cache_hits: int = 0
    pins: int = 0
    reads: int = 0


class LiveGateway(msgspec.Struct, frozen=True):
    """One gateway, and what it has counted since it started."""

    name: str
    asked: bool  # whether it is the one that says this
    under_way: int
    queued: int
    prompt_tokens: int
    generated_tokens: int
    ended: int
    failed: int


class LiveLane(msgspec.Struct, frozen=True):
    """One request under way.

    Attributes:
        id: of its answer, as its client sees it; empty if another gateway has it
        choice: index of the choice in that answer
        room: begins its room's id, as logs show it whole
        state: at its gateway; empty if another one has it
        prefill, decode: its workers; empty while it has none
        pages: number of its pages by worker and group
    """

    id: str
    choice: int
    room: str
    phase: str
    state: str
    prefill: str
    decode: str
    age_ms: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    pages: dict[str, dict[str, int]]


class SlowRequest(msgspec.Struct, frozen=True):
    """A request that has ended, and why it took so long."""

    id: str
    room: str  # begins its room's id
    ended_s: float  # ago
    verdict: SlowVerdict


class LiveSnapshot(msgspec.Struct, frozen=True):
    """Everything, at one moment.

    Attributes:
        number: of the snapshot, from 1; `at_ms` is when it was made, by a clock of its own
        demo: whether POST /demo/.. breaks things
        lanes_left_out: requests under way that are not among the lanes
        slow: requests of this gateway that ended lately and were not generated for the longest
            time, the longest first
        first, between: recent times to the first token, and between tokens, at this gateway
    """

    number: int
    at_ms: int
    version: str
    model: str
    ready: Readiness
    demo: bool
    gateways: tuple[LiveGateway, ...]
    workers: tuple[LiveWorker, ...]
    workers_left_out: int
    pairs: tuple[PairView, ...]
    pairs_left_out: int
    lanes: tuple[LiveLane, ...]
    lanes_left_out: int
    slow: tuple[SlowRequest, ...]
    first: Quantiles
    between: Quantiles


class LiveView:
    """Looks at one gateway, and through it at all workers."""

    def __init__(
        self,
        *,
        door: Door,
        dispatcher: Dispatcher,
        own: Callable[[LedgerReport], GatewayCounts],
        times: LiveTimes,
        siblings: Siblings | None,
        timelines: Timelines | None,
        model: str,
        demo: bool,
    ) -> None:
        """
        Args:
            own: completes a report to the counts of this gateway
            timelines: of its requests; None = they are not known
        """
        self._door, self._dispatcher, self._own, self._times = door, dispatcher, own, times
        self._siblings, self._timelines = siblings, timelines
        self._model, self._demo = model, demo
        self._encoder = msgspec.json.Encoder()
        self._number = 0
        self._known: frozenset[Room] = frozenset()  # of this gateway, in the last snapshot

    def watch(self, on: bool) -> None:
        """Somebody begins to look from time to time, or nobody does any more."""
        self._times.watch(on)

    async def look(self, now: float) -> bytes:
        """Return the snapshot as JSON. now: seconds of the clock of the times"""
        report = await self._door.ledger(audit=False)
        others = [] if self._siblings is None else await self._siblings.others()
        return self._encoder.encode(self._snapshot(report, others, now))

    def _snapshot(
        self, report: LedgerReport, others: Sequence[GatewayCounts], now: float
    ) -> LiveSnapshot:
        entries = shown(self._dispatcher.entries)
        view = self._door.view([e.request for e in entries], most_pairs=MOST_PAIRS)
        lanes = list(own_lanes(entries, view, report.workers))
        known = frozenset(request.room for request in view.requests.values())
        if others and self._dispatcher.open_requests <= len(entries):
            foreign = foreign_lanes(report.workers, known | self._known)
            lanes += islice(foreign, MOST_LANES - len(lanes))
        self._known = known
        self._number += 1
        first, between = self._times.take(now)
        gateways = [_gateway(self._own(report), asked=True)]
        gateways += [_gateway(counts, asked=False) for counts in others]
        workers = [_worker(view, report.credits) for view in report.workers]
        workers += [LiveWorker(name, answers=False) for name in report.missing]
        under_way = sum(gateway.under_way for gateway in gateways)
        return LiveSnapshot(
            number=self._number,
            at_ms=int(1000 * now),
            version=__version__,
            model=self._model,
            ready=self._door.ready(),
            demo=self._demo,
            gateways=tuple(sorted(gateways, key=lambda g: g.name)),
            workers=tuple(sorted(workers, key=lambda w: w.name)[:MOST_WORKERS]),
            workers_left_out=max(0, len(workers) - MOST_WORKERS),
            pairs=view.pairs,
            pairs_left_out=view.pairs_left_out,
            lanes=tuple(lanes),
            lanes_left_out=max(0, under_way - len(lanes)),
            slow=() if self._timelines is None else tuple(_slow(self._timelines)),
            first=first,
            between=between,
        )


def _slow(timelines: Timelines) -> Iterator[SlowRequest]:
    now = timelines.wall()
    for timeline in timelines.slowest(MOST_SLOW, SLOW_WITHIN_S):
        if timeline.verdict is not None:
            ended_s = max(0.0, now - timeline.arrived - timeline.total_us / 1e6)
            yield SlowRequest(timeline.id, timeline.room[:8], ended_s, timeline.verdict)


def shown(entries: Collection[DispatchedRequest]) -> list[DispatchedRequest]:
    """Return the requests that get a lane. If there are too many, these are the oldest, which may
    hang, and the newest, which their clients may be looking for."""
    listed = list(entries)
    if len(listed) <= MOST_LANES:
        return listed
    half = MOST_LANES // 2
    return listed[:half] + listed[-half:]


def own_lanes(
    entries: Sequence[DispatchedRequest], view: FrontView, workers: Sequence[LedgerView]
) -> Iterator[LiveLane]:
    """Yield the lanes of this gateway's requests."""
    wanted = {(r.room, r.epoch) for r in view.requests.values()}
    rooms: dict[tuple[str, Room, Epoch], RoomView] = {
        (worker.name, room.room, room.epoch): room
        for worker in workers
        for room in worker.rooms
        if (room.room, room.epoch) in wanted
    }
    for entry in entries:
        request = view.requests.get(entry.request)
        if request is not None:
            yield _own_lane(entry, request, rooms)


def _own_lane(
    entry: DispatchedRequest,
    request: RequestView,
    rooms: Mapping[tuple[str, Room, Epoch], RoomView],
) -> LiveLane:
    stream = entry.stream
    apart = request.prefill != request.decode
    prefill, decode = (
        rooms.get((worker, request.room, request.epoch))
        for worker in (request.prefill, request.decode)
    )
    return LiveLane(
        id=entry.exchange.id,
        choice=stream.index,
        room=request.room[:8],
        phase=phase_of(request.state, _state(prefill) if apart else None, _state(decode)),
        state=request.state,
        prefill=request.prefill,
        decode=request.decode,
        age_ms=request.age_ms,
        prompt_tokens=len(stream.prompt),
        cached_tokens=stream.cached,
        generated_tokens=stream.count,
        pages={
            worker: {str(group): count for group, count in room.pages.items()}
            for worker, room in ((request.prefill, prefill), (request.decode, decode))
            if room is not None
        },
    )


def foreign_lanes(workers: Sequence[LedgerView], known: frozenset[Room]) -> Iterator[LiveLane]:
    """Yield the lanes of rooms that other gateways have opened."""
    found: dict[Room, dict[str, tuple[str, RoomView]]] = {}  # side -> worker and room
    for worker in workers:
        side = "prefill" if worker.role == "prefill" else "decode"
        for room in worker.rooms:
            if room.room not in known:
                found.setdefault(room.room, {})[side] = (worker.name, room)
    for name, sides in found.items():
        prefill, decode = sides.get("prefill"), sides.get("decode")
        phase = phase_of("", _state(prefill and prefill[1]), _state(decode and decode[1]))
        if phase is not RequestPhase.ENDING:
            yield LiveLane(
                id="",
                choice=0,
                room=name[:8],
                phase=phase,
                state="",
                prefill=prefill[0] if prefill is not None else "",
                decode=decode[0] if decode is not None else "",
                age_ms=max(room.age_ms for _, room in sides.values()),
                prompt_tokens=0,
                cached_tokens=0,
                generated_tokens=0,
                pages={
                    worker: {str(group): count for group, count in room.pages.items()}
                    for worker, room in sides.values()
                },
            )


def _state(room: RoomView | None) -> str | None:
    return None if room is None else room.state


def _worker(view: LedgerView, credits: Mapping[str, Credits]) -> LiveWorker:
    """credits: what workers last said of their capacity, by name"""
    cache, said = view.counters.cache, credits.get(view.name)
    return LiveWorker(
        name=view.name,
        role=view.role,
        draining=said is not None and said.draining,
        ranks=tuple(LiveRank(rank.rank, f"{rank.boot:016x}") for rank in view.ranks),
        pages=_by_name(view.pages),
        rooms=dict(Counter(room.state for room in view.rooms)),
        cache_queries=cache.queries,
        cache_hits=cache.hits,
        pins=view.pins,
        reads=view.reads,
    )


def _by_name(pages: Mapping[GroupName, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {str(group): states for group, states in pages.items()}


def _gateway(counts: GatewayCounts, *, asked: bool) -> LiveGateway:
    tally = counts.tally
    return LiveGateway(
        name=counts.name,
        asked=asked,
        under_way=counts.under_way,
        queued=counts.report.queue.length,
        prompt_tokens=tally.prompt_tokens,
        generated_tokens=tally.generated_tokens,
        ended=sum(tally.finished.values()),
        failed=sum(tally.failed.values()),
    )
