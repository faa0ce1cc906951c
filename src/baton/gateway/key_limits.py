"""What the holder of an API key may have open at once, and ask in a minute, at this gateway."""

from collections import deque
from collections.abc import Callable
from math import ceil

from baton.gateway.api_keys import ApiKey
from baton.gateway.faults import Fault, HttpFault

WINDOW_S = 60.0
SOON_S = 1  # a request of one's own may end at any time


class KeyUse:
    """The requests of one key. `now` returns seconds of a clock that never goes back."""

    def __init__(self, key: ApiKey, now: Callable[[], float]) -> None:
        self._key, self._now = key, now
        self._open = 0
        self._accepted: deque[float] = deque(maxlen=key.requests_per_minute or 0)  # when

    def begin(self) -> None:
        """Count a request; its `end` must follow.

        Raises:
            HttpFault: 429, with the time after which another try may be accepted. Nothing is
                counted.
        """
        key, now, accepted = self._key, self._now(), self._accepted
        if key.max_concurrent is not None and self._open >= key.max_concurrent:
            raise self._too_many(
                f"{self._open} requests open at this gateway, and at most {key.max_concurrent} may "
                "be; send another when one has ended",
                after_s=SOON_S,
            )
        if key.requests_per_minute is not None:
            frees_in_s = accepted[0] + WINDOW_S - now if accepted else 0.0
            if len(accepted) == key.requests_per_minute and frees_in_s > 0:
                raise self._too_many(
                    f"{len(accepted)} requests accepted by this gateway within a minute, which is "
                    f"its limit; ask again in {ceil(frees_in_s)} s",
                    after_s=ceil(frees_in_s),
                )
            accepted.append(now)  # drops the oldest of a full window
        self._open += 1

    def end(self) -> None:
        """Count the end of a request that has begun."""
        assert self._open > 0
        self._open -= 1

    def _too_many(self, has: str, *, after_s: int) -> HttpFault:
        who = f"the API key {self._key.name}" if self._key.name else "this API key"
        fault = Fault(f"{who} has {has}", "requests", None, "rate_limit_exceeded")
        return HttpFault(429, fault, headers={"retry-after": str(after_s)})
