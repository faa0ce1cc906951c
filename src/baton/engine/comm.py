"""The collectives between the ranks of a worker during compute; they transfer only activations.

    stage 0:  rank 0 ◀─sum─▶ rank 1          ranks of a stage hold parts of the same layers: partial sums are added up
                 │              │            stages hold the layers one after the other: hidden states go down
    stage 1:  rank 2 ◀─sum─▶ rank 3          rank = stage * tp + tp_rank

Every call is made by the compute threads of all ranks concerned, in the order of batches. There is
no process-wide state: the groups belong to the object, so several ranks can be in one process.
"""

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, cast

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from baton.core.errors import PeerError
from baton.core.memory.state import Placement

SENDS_UNDER_WAY = 2  # hidden states queued for a later stage; more would only take memory


class Comm(Protocol):
    """The collectives of one rank."""

    tp: int
    tp_rank: int
    first: bool  # whether this is the first stage, which begins with tokens
    last: bool  # whether this is the last stage, which ends with logits

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        """Sum x over the ranks of this stage, in place;
        the result is bitwise the same on each rank."""
        ...

    def gather(self, x: torch.Tensor) -> torch.Tensor | None:
        """Concatenate x [rows, n] of every rank of this stage to [rows, tp * n].

        Only the first rank of the stage gets the result; the others get None.
        """
        ...

    def send(self, x: torch.Tensor) -> None:
        """Send hidden states to the next stage, without waiting. x must not change afterwards."""
        ...

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Fill x with hidden states from the previous stage."""
        ...

    def close(self) -> None:
        """Abort calls that wait, on this rank and on others."""
        ...


class Alone:
    """Implements Comm for a worker of one rank."""

    tp, tp_rank, first, last = 1, 0, True, True

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor | None:
        return x

    def send(self, x: torch.Tensor) -> None:
        raise AssertionError("there is no next stage")

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("there is no stage before")

    def close(self) -> None: ...


class _Group(Protocol):
    """The methods of a process group that are used here; torch's stubs lack them."""

    def allreduce(self, tensors: list[torch.Tensor], /) -> dist.Work: ...
    def gather(
        self,
        parts: list[list[torch.Tensor]],
        own: list[torch.Tensor],
        options: dist.GatherOptions,
        /,
    ) -> dist.Work: ...
    def send(self, tensors: list[torch.Tensor], to: int, tag: int, /) -> dist.Work: ...
    def recv(self, tensors: list[torch.Tensor], source: int, tag: int, /) -> dist.Work: ...
    def abort(self) -> None: ...


class GlooComm:
    """Implements Comm over torch.distributed's gloo, for ranks on CPUs.

    `store` is the rendezvous of the ranks, `host` the address by which others reach this rank. The
    ranks connect at the first call: by then all have loaded their weights, or the worker has ended.
    Every call raises PeerError if not all ranks come within `timeout_s`, or once a rank is lost.
    """

    def __init__(self, placement: Placement, store: Store, *, host: str, timeout_s: float) -> None:
        p = placement
        self.tp, self.tp_rank = p.tp, p.tp_rank
        self.first, self.last = p.pp_rank == 0, p.pp_rank == p.pp - 1
        self._stage, self._pp = p.pp_rank, p.pp
        self._placement, self._store, self._host, self._timeout_s = p, store, host, timeout_s
        self._sending: deque[tuple[dist.Work, torch.Tensor]] = deque()
        self._peers: _Group | None = None
        self._stages: _Group | None = None
        self._connected = self._closed = False

    def _connect(self) -> None:
        """Connect all ranks, in the same order on each, so that they cannot deadlock.

        torch's public setting for the address that gloo binds to is an environment variable of the
        whole process, which may have several ranks. So this uses private options, and
        pyproject.toml bounds the version of torch.
        """
        p = self._placement
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = timedelta(seconds=self._timeout_s)

        def group(name: str, rank: int, size: int) -> _Group | None:
            if size == 1:
                return None
            return cast(
                _Group, dist.ProcessGroupGloo(PrefixStore(name, self._store), rank, size, options)
            )

        try:
            self._peers = group(f"stage-{p.pp_rank}", p.tp_rank, p.tp)
            self._stages = group(f"column-{p.tp_rank}", p.pp_rank, p.pp)
        except RuntimeError as error:
            raise PeerError(f"the ranks of this worker did not find each other: {error}") from error
        self._connected = True

    def _begin(self, act: Callable[[_Group], dist.Work], *, stages: bool = False) -> dist.Work:
        if self._closed:
            raise PeerError("this rank has left its worker")
        if not self._connected:
            self._connect()
        group = self._stages if stages else self._peers
        assert group is not None
        try:
            return act(group)
        except RuntimeError as error:
            raise _lost(error) from error

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        if self.tp > 1:
            self._wait(self._begin(lambda group: group.allreduce([x])))
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor | None:
        if self.tp == 1:
            return x
        x = x.contiguous()
        parts = [[torch.empty_like(x) for _ in range(self.tp)]] if self.tp_rank == 0 else []
        self._wait(self._begin(lambda group: group.gather(parts, [x], dist.GatherOptions())))
        return torch.cat(parts[0], dim=-1) if parts else None

    def send(self, x: torch.Tensor) -> None:
        while len(self._sending) >= SENDS_UNDER_WAY:
            self._wait(self._sending.popleft()[0])
        self._sending.append(
            (self._begin(lambda group: group.send([x], self._stage + 1, 0), stages=True), x)
        )

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        self._wait(self._begin(lambda group: group.recv([x], self._stage - 1, 0), stages=True))
        return x

    def close(self) -> None:
        self._closed = True
        for group in (self._peers, self._stages):
            if group is not None:
                group.abort()  # aborts calls that wait on this rank
        # closes the connections, which aborts calls on other ranks
        self._peers = self._stages = None

    def _wait(self, work: dist.Work) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise _lost(error) from error


def _lost(error: RuntimeError) -> PeerError:
    return PeerError(f"a rank of this worker was lost while it computed: {error}")
