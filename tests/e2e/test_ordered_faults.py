"""Pages that change at their source, and words that come late, never or twice: between real
processes.

The prefill worker does what a test orders (tests/late.py, tests/source_pages.py); the gateway is as
it is, and so is the decode worker but for its stall, which is shortened (it runs the same main
module, and is ordered nothing). Each test shows that its fault happened (`planted`), that it was
seen, that the answer is the one without it, and that nothing is left. The processes live on from
test to test, so each also serves after the faults before it.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.e2e.ordered_worker import Orders, give
from tests.e2e.service import Service, wait_for
from tests.late import Fate, Rule
from tests.source_pages import Change, PageRule

# three chunks: offers 0 to 3, the last with the record
PROMPT = [(11 * i) % 250 + 1 for i in range(150)]
TOKENS = 12
LONG = 1600  # tokens: some seconds
HOLD_MS = 1500
STALL_MS = 2500  # of decode
SILENCE_S = 3.0
EPOCHS = 3  # that the gateway opens after failures
TRIES = 5
pytestmark = pytest.mark.timeout(120)


class Ordered(Service):
    """A service whose prefill worker takes orders."""

    truth: dict[int, list[int]]

    def begin(self) -> None:
        self.truth = {}
        self.start_gateway()
        pools = ("--kv-pages", "120")
        for role, stall_ms, flags in (
            (
                "prefill",
                60_000,
                (
                    "--page-size",
                    "32",
                    "--max-num-batched-tokens",
                    "64",
                    "--no-enable-prefix-caching",
                ),
            ),
            (
                "decode",
                STALL_MS,
                ("--page-size", "16", "--max-model-len", "4096", "--no-enable-prefix-caching"),
            ),
        ):
            path = self.orders(role)
            give(path, Orders())
            main = ["-m", "tests.e2e.ordered_worker", str(path), str(stall_ms)]
            self.start_worker(role, *pools, *flags, main=main)
        self.wait_ready()

    def orders(self, name: str) -> Path:
        return self.directory / f"{name}-orders.json"

    def expected(self, tokens: int) -> list[int]:
        if tokens not in self.truth:
            self.truth[tokens] = self.ids(PROMPT, max_tokens=tokens, ignore_eos=True)
            self.wait_clean()
        return self.truth[tokens]


class Case:
    """One order, one request under it, and what the processes logged meanwhile."""

    def __init__(
        self, service: Ordered, *messages: Rule, pages: PageRule | None = None, tokens: int = TOKENS
    ) -> None:
        self._service, self._tokens = service, tokens
        self.expected = service.expected(tokens)
        service.wait_clean()
        service.ledger()  # answered after whatever was under way to the workers
        self._logged = {name: len(service.log(name)) for name in service.processes}
        give(service.orders("prefill"), Orders(messages, pages))

    def ask(self) -> httpx.Response:
        began = time.monotonic()
        answer = self._service.complete(PROMPT, max_tokens=self._tokens, ignore_eos=True)
        self.took_s = time.monotonic() - began
        return answer

    def answer(self) -> list[int]:
        answer = self.ask()
        assert answer.status_code == 200, answer.text
        return list(answer.json()["choices"][0]["token_ids"])

    def error(self) -> str:
        answer = self.ask()
        assert answer.status_code >= 500, answer.text
        return str(answer.json()["error"]["code"])

    def lines(self, name: str, *words: str) -> list[str]:
        """What one process has logged since, as far as it holds all these words."""
        log = self._service.log(name)[self._logged[name] :]
        return [line for line in log.splitlines() if all(word in line for word in words)]

    def await_line(self, name: str, *words: str) -> None:
        wait_for(lambda: self.lines(name, *words), seconds=10, why=f"{name} logs {words}")

    def planted(self) -> list[str]:
        return self.lines("prefill", "event=planted ")

    def failed(self, *words: str) -> list[str]:
        """Epochs that a worker gave up, for a reason with these words."""
        return [
            line
            for name in ("prefill", "decode")
            for line in self.lines(name, "event=epoch_failed", *words)
        ]

    def close(self, seconds: float = 2.0) -> None:
        """Nothing goes wrong any more, nothing is left, and the next request is served."""
        give(self._service.orders("prefill"), Orders())
        self._service.wait_ready()
        self._service.wait_clean(seconds)
        self._service.wait_ready()  # again: the gateway may have heard of a cut only now
        assert (
            self._service.ids(PROMPT, max_tokens=TOKENS, ignore_eos=True)
            == self._service.truth[TOKENS]
        )
        self._service.wait_clean()


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, tiny: Path, request: pytest.FixtureRequest
) -> Iterator[Ordered]:
    service = Ordered(tmp_path_factory.mktemp("ordered"), tiny, fabric=request.param)
    try:
        service.begin()
        service.expected(TOKENS)
        yield service
    finally:
        service.close()


BOTH = pytest.mark.parametrize("service", ["shm", "nixl"], indirect=True)
SHM = pytest.mark.parametrize("service", ["shm"], indirect=True)


# ---- pages that change at their source ----------------------------------------------------------


@BOTH
def test_a_page_that_was_lent_to_others_is_read_again_when_it_is_back(service: Ordered) -> None:
    case = Case(service, pages=PageRule(Change.LENT))
    assert case.answer() == case.expected
    assert len(case.planted()) == 1
    assert len(case.lines("decode", "event=doubt")) == 1
    assert len(case.lines("prefill", "event=verdict")) == 1
    assert not case.failed()
    case.close()


@BOTH
@pytest.mark.parametrize("change", [Change.REUSED, Change.FLIPPED])
def test_a_page_that_changed_for_good_ends_the_epoch_and_is_computed_again(
    service: Ordered, change: Change
) -> None:
    case = Case(service, pages=PageRule(change))
    assert case.answer() == case.expected
    assert len(case.planted()) == 1
    assert len(case.lines("decode", "event=doubt")) == 1
    assert len(case.failed("epoch=1", "changed in prefill's own memory")) == 1
    assert not case.failed("epoch=2")
    case.close()


@BOTH
def test_pages_that_change_in_every_epoch_are_a_typed_error(service: Ordered) -> None:
    case = Case(service, pages=PageRule(Change.FLIPPED, count=None))
    assert case.error() == "handoff_failed"
    assert len(case.planted()) == len(case.failed("changed in prefill's own memory")) == EPOCHS
    case.close()


# ---- late ---------------------------------------------------------------------------------------


@SHM
@pytest.mark.parametrize(
    "rule",
    [
        Rule(Fate.HELD, "Offer", number=0, hold_ms=HOLD_MS),
        Rule(Fate.HELD, "Offer", count=None, hold_ms=HOLD_MS),
        Rule(Fate.HELD, "Offer", last=True, hold_ms=HOLD_MS),
    ],
    ids=["first", "all", "last"],
)
def test_late_offers_cost_their_time_and_nothing_else(service: Ordered, rule: Rule) -> None:
    case = Case(service, rule)
    assert case.answer() == case.expected
    assert len(case.planted()) == (4 if rule.count is None else 1)
    assert HOLD_MS / 1000 <= case.took_s < HOLD_MS / 1000 + 2
    assert not case.failed()
    case.close()


@SHM
@pytest.mark.parametrize(
    ("hold_ms", "tokens"),
    [(HOLD_MS, TOKENS), (200, LONG)],
    ids=["after_the_end", "amid_the_tokens"],
)
def test_a_late_first_token_changes_nothing(service: Ordered, hold_ms: int, tokens: int) -> None:
    case = Case(service, Rule(Fate.HELD, "FirstToken", hold_ms=hold_ms), tokens=tokens)
    assert case.answer() == case.expected
    assert bool(case.lines("prefill", "event=planted_over")) == (tokens == LONG), (
        "it came when it was meant to"
    )
    assert len(case.planted()) == 1
    case.await_line("prefill", "event=planted_over")
    assert not case.failed()
    case.close()


@SHM
def test_an_offer_that_outlasts_the_stall_comes_into_the_next_epoch(service: Ordered) -> None:
    case = Case(service, Rule(Fate.HELD, "Offer", last=True, hold_ms=STALL_MS + 1000))
    assert case.answer() == case.expected
    assert len(case.planted()) == 1
    assert (
        len(case.failed())
        == len(case.lines("decode", "event=epoch_failed", "epoch=1", "no progress for"))
        == 1
    )
    case.close()


# ---- never --------------------------------------------------------------------------------------


@SHM
def test_a_last_offer_that_never_comes_ends_the_epoch_by_its_stall(service: Ordered) -> None:
    case = Case(service, Rule(Fate.EMPTY, "Offer", last=True))
    assert case.answer() == case.expected
    assert len(case.planted()) == 1
    assert STALL_MS / 1000 <= case.took_s < STALL_MS / 1000 + 2
    assert (
        len(case.failed())
        == len(case.lines("decode", "event=epoch_failed", "epoch=1", "no progress for"))
        == 1
    )
    case.close()


@SHM
def test_last_offers_that_never_come_are_a_typed_error_in_time(service: Ordered) -> None:
    case = Case(service, Rule(Fate.EMPTY, "Offer", last=True, count=None))
    assert case.error() == "handoff_failed"
    assert len(case.planted()) == EPOCHS
    # each epoch has the two seconds beside its stall that the only one above has
    assert case.took_s < EPOCHS * (STALL_MS / 1000 + 2)
    case.close()


def by_silence(case: Case, side: str) -> list[str]:
    """What it logged of a session that was silent: who is second to find it so may hear before that
    the first one has hung up, or of the next session."""
    whys = ("silent for 3.0 s", "its connection has ended", "it opened the next session")
    return [line for why in whys for line in case.lines(side, "event=peer_lost", why)]


def lose_a_session(service: Ordered, *, last: bool) -> None:
    case = Case(service, Rule(Fate.SILENCE, "Offer", last=last))
    assert case.answer() == case.expected
    assert len(case.planted()) == 1
    assert SILENCE_S - 1 < case.took_s < SILENCE_S + 3
    sides = ("prefill", "decode")
    wait_for(lambda: all(by_silence(case, s) for s in sides), seconds=10, why="both have said so")
    lost = [by_silence(case, side) for side in sides]
    assert all(len(lines) == 1 for lines in lost)
    assert any("silent for 3.0 s" in line for lines in lost for line in lines)
    assert case.failed("code=worker_lost")
    case.close()


@SHM
def test_an_offer_and_all_behind_it_lost_end_the_session_and_the_next_one_serves(
    service: Ordered,
) -> None:
    lose_a_session(service, last=False)


@BOTH
def test_a_last_offer_and_all_behind_it_lost_end_the_session_and_the_next_one_serves(
    service: Ordered,
) -> None:
    """Decode's stall comes before: one epoch is opened into the silence."""
    lose_a_session(service, last=True)


@SHM
def test_sessions_that_fall_silent_at_every_offer_are_a_typed_error_in_time(
    service: Ordered,
) -> None:
    case = Case(service, Rule(Fate.SILENCE, "Offer", count=None))
    assert case.error() == "worker_lost"
    assert (
        len(
            {
                word
                for line in case.planted()
                for word in line.split()
                if word.startswith("session=")
            }
        )
        == EPOCHS
    )
    assert case.took_s < EPOCHS * (SILENCE_S + 2)
    case.close()


@SHM
@pytest.mark.parametrize("fate", [Fate.EMPTY, Fate.SILENCE])
def test_a_first_token_that_never_comes_is_in_the_tokens_of_decode(
    service: Ordered, fate: Fate
) -> None:
    case = Case(service, Rule(fate, "FirstToken"))
    assert case.answer() == case.expected
    assert len(case.planted()) == 1
    assert case.took_s < 1
    if fate is Fate.SILENCE:
        for side in ("prefill", "gateway"):
            wait_for(
                lambda at=side: by_silence(case, at), seconds=10, why=f"{side} has lost its peer"
            )
    case.close()


@SHM
def test_an_only_token_that_never_comes_is_computed_again_in_the_next_session(
    service: Ordered,
) -> None:
    """It ends at its first token, which prefill alone says: its client has heard nothing, and waits
    for the next session."""
    case = Case(service, Rule(Fate.SILENCE, "FirstToken"), tokens=1)
    assert case.answer() == case.expected
    assert len(case.planted()) == 1
    assert SILENCE_S - 1 < case.took_s < SILENCE_S + 3
    case.close()


# ---- twice --------------------------------------------------------------------------------------


def cut_a_session(service: Ordered, *, last: bool) -> None:
    for _ in range(TRIES):
        case = Case(service, Rule(Fate.CUT, "Offer", last=last, again_at="Offer"))
        assert case.answer() == case.expected
        if len(case.planted()) > 1:
            break
        assert last, "a cut before the last offer comes before the commit"
        # decode had read all and committed before it heard of the cut: no epoch, no offer behind it
        case.close()
    assert len(case.planted()) == 2
    assert len(case.lines("prefill", "event=planted ", "fate=again")) == 1
    for side in ("prefill", "decode"):
        assert (
            len(case.lines(side, "event=peer_lost", "planted"))
            == len(case.lines(side, "event=peer_lost"))
            == 1
        )
    assert not case.failed("epoch=2")
    case.close()


@SHM
def test_what_was_said_to_decode_before_a_cut_at_the_first_offer_changes_nothing_after(
    service: Ordered,
) -> None:
    cut_a_session(service, last=False)


@BOTH
def test_what_was_said_to_decode_before_a_cut_at_the_last_offer_changes_nothing_after(
    service: Ordered,
) -> None:
    cut_a_session(service, last=True)


@SHM
def test_what_was_said_to_the_gateway_before_a_cut_changes_nothing_after(service: Ordered) -> None:
    """Ticket, first token and endings of a room that was closed come again amid another room."""
    case = Case(service, Rule(Fate.CUT, "Close", again_at="FirstToken"))
    assert case.answer() == case.expected
    for side in ("prefill", "gateway"):
        case.await_line(side, "event=peer_lost", "planted")
    service.wait_ready()
    assert case.answer() == case.expected
    # decode may be done before prefill says its first token
    case.await_line("prefill", "event=planted ", "fate=again")
    assert len(case.lines("prefill", "event=planted ", "fate=again")) == 1
    for side in ("prefill", "gateway"):
        assert len(case.lines(side, "event=peer_lost")) == 1
    assert not case.failed()
    case.close()
