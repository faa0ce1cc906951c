"""The clients of a world: when they ask, leave and ask again, and whether the answers are right and
failures are excused."""

from itertools import count
from typing import Any

import msgspec

from baton.core.door import Cancel, Fail, Finish, Heard, RequestId, Submit
from baton.core.errors import Overloaded
from baton.core.events import Submitted
from baton.core.gateway.request import FrontSettings
from baton.core.handoff.fetch_back import FetchBack
from baton.core.ids import Key, TokenId
from baton.core.messages import Limits, Sampling, Shaping
from baton.dev.sim import content
from baton.dev.sim.clients import Client, Oracle, right_answer
from baton.dev.sim.excuses import OF_GUESTS, InjectedFault, excuse
from baton.dev.sim.grammar import toy
from baton.dev.sim.settings import BLOCK_TOKENS

LEFT = "the client left"
MET_DAMAGE = "each attempt met a page that was damaged before healing"
CHANGED = "changed in prefill's own memory"
LONGEST_PROMPT = 22  # tokens, of an ordinary request
# lengths: short ones more often than long ones
PROMPTS = (*range(1, 11), *range(1, 11), *range(1, LONGEST_PROMPT + 1))
ANSWERED_PROMPTS = range(5, 16)  # which leave space for the answer in the next turn's
LONG_PROMPTS = range(10, LONGEST_PROMPT + 1)
LONGEST_MORE = 10  # tokens after a prompt that was asked before
SALTS = ("", "", "", "another tenant")
ANSWERS = (2, 1, 3, 2, 4)  # tokens
LONG_ANSWERS = (2, 4, 8, 9, 10)
# Few tokens may be drawn, and none that ends an answer; of their pairs half are bad words, so that
# nearly every token makes some other one bad next.
FEW = tuple(TokenId(t) for t in (1, 20, 30, 50, 60))
PAIRS_OF_FEW = tuple((a, b) for a in FEW for b in FEW if (a + b) % 20 < 10)
SHAPINGS = (
    None,
    Shaping(1.0, 0.5, 0.0, ()),
    Shaping(1.0, 0.0, 0.5, ()),
    Shaping(1.2, 0.0, 0.0, ()),
    Shaping(1.1, 0.5, 0.5, ((TokenId(5), 2.0),)),
    Shaping(1.0, 0.0, 0.0, (), allowed_token_ids=FEW),
    Shaping(1.0, 0.0, 0.0, (), allowed_token_ids=FEW, bad_words=PAIRS_OF_FEW),
)
STOPS = tuple(TokenId(t) for t in range(40, 48))  # many, as there are few tokens


class SimulatedClients:
    """The clients of one world."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.oracle = Oracle(world.violate, world.tickets)
        self._numbers = count(1)
        self._last: Client | None = None
        self._prompts: list[tuple[TokenId, ...]] = []
        self._damage_met = 0  # attempts of probes that may have ended because of damage

    @property
    def clients(self) -> list[Client]:
        """All clients that have asked."""
        return list(self.oracle.clients.values())

    def all_ended(self) -> bool:
        """Whether no client waits any more."""
        # most of the time the client that waited last still waits
        if self._last is None or not self._last.open:
            self._last = next((c for c in self.oracle.clients.values() if c.open), None)
        return self._last is None

    def gateway_ended(self, gateway: str) -> None:
        """A gateway has ended: its clients hear nothing more."""
        for client in self.clients:
            if client.open and client.gateway == gateway:
                client.gone, client.ended_at = "its gateway ended", self._world.heap.now

    def ask(self, *, probe: bool = False) -> None:
        """Send a request, as a new client."""
        number = next(self._numbers)
        gateway = self._world.draw.gateways[
            self._world.tape.below(len(self._world.draw.gateways), "gateway")
        ]
        run = self._world.gateways[gateway]
        faults = self._world.faults()
        repeats = bool(self._prompts) and self._world.tape.below(5, "repeats") >= (
            1 if self._world.draw.alike else 3
        )
        big, tight = (
            self._world.tape.chance(faults.big, "too big"),
            self._world.tape.chance(faults.tight, "tight deadline"),
        )
        if repeats:
            if self._world.draw.fetch_back is not FetchBack.NEVER and self._world.tape.chance(
                0.6, "prefill forgets"
            ):
                self._world.reset_prefill()
            prompt = self._again(number)
        else:
            length = self._too_long() if big else self._length()
            over = (
                BLOCK_TOKENS
                if self._world.tape.chance(0.15, "says the same over and over")
                else length
            )
            prompt = tuple(
                TokenId(content.scramble(number * 64 + i % over) % content.VOCABULARY)
                for i in range(length)
            )
            if not big:
                self._prompts.append(prompt)
        draw = self._world.draw
        # in a crowd all others may come first
        needs_ms = self._world.alone_us * (draw.requests if draw.crowded else 1) // 1000
        patience_ms = draw.hurry_ms if draw.hurry_ms and not probe else 20_000 + needs_ms
        limits = Limits(
            max_tokens=(LONG_ANSWERS if draw.pressed or draw.hurry_ms else ANSWERS)[
                self._world.tape.below(5, "max_tokens")
            ],
            stop_token_ids=(),
            eos_token_ids=(content.END_OF_SEQUENCE,)
            if self._world.tape.below(2, "eos") == 0
            else (),
            deadline_ms=60 + 100 * self._world.tape.below(5, "tight") if tight else patience_ms,
        )
        salt = SALTS[self._world.tape.below(len(SALTS), "salt")]
        # not drawn from the tape either
        says_again = self._world.draw.drafts and number % 3
        sampling = Sampling(0.0, 1.0, content.REPEATS if says_again else 0, number, None)
        if self._world.draw.shaped:
            sampling, limits = self._shaped(sampling, limits)
        # not drawn from the tape, so that worlds that are not shaped stay as they are
        grammar = toy(number // 4 % 5) if self._world.draw.shaped and number % 4 < 2 else None
        if grammar is not None:
            if sampling.shaping is not None and sampling.shaping.allowed_token_ids:
                # a grammar may allow none of the few
                sampling = msgspec.structs.replace(sampling, shaping=None)
            limits = msgspec.structs.replace(limits, eos_token_ids=grammar.ends)
        if draw.shaped and number % 5 == 1:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=number % 3)
        submit = Submit(
            RequestId(number),
            prompt,
            sampling,
            limits,
            priority=number % 3,
            cache_salt=salt,
            grammar=grammar,
        )
        client = Client(
            submit, gateway, self._world.heap.now, probe, repeats, tight, big and not repeats
        )
        self.oracle.clients[submit.request] = client
        self._world.gray.asked(client)
        if not run.process.alive:
            client.gone, client.ended_at = "connection refused", self._world.heap.now
            return
        if tight:
            self._world.all_faults.append(
                InjectedFault(self._world.heap.now, "tight", frozenset({f"request {number}"}))
            )
        if client.big:
            self._world.all_faults.append(
                InjectedFault(self._world.heap.now, "big", frozenset({f"request {number}"}))
            )
        self._world.tell(
            f"client: {client.name}: {len(prompt)} tokens, at most {limits.max_tokens} to generate"
        )
        try:
            run.step(Submitted(submit, self._world.new_room()))
        except Overloaded as error:
            self._refused(client, str(error))
            return
        if not probe and self._world.tape.chance(faults.abort, "client leaves"):
            self._world.heap.after(
                self._world.tape.below(60, "leaves after") * 2_000, self._leave, client
            )

    def _shaped(self, sampling: Sampling, limits: Limits) -> tuple[Sampling, Limits]:
        """Add penalties, a bias, logprobs, more tokens that end the answer, or a least length: some
        of these, or none."""
        below = self._world.tape.below
        shaping = SHAPINGS[below(len(SHAPINGS), "shaping")]
        logprobs = (None, 2, 0)[below(3, "logprobs")]
        stops = STOPS if below(2, "stop ids") else ()
        least = below(limits.max_tokens + 1, "min_tokens")
        return (
            msgspec.structs.replace(sampling, shaping=shaping, logprobs=logprobs),
            msgspec.structs.replace(limits, stop_token_ids=stops, min_tokens=least),
        )

    def _again(self, number: int) -> tuple[TokenId, ...]:
        """Return a prompt that was asked before: unchanged, with more after it, or with its answer
        and more, like the next turn of a chat."""
        prompts = self._answered() or self._prompts
        prompt: tuple[TokenId, ...] = prompts[self._world.tape.below(len(prompts), "which prompt")]
        # where only the end of an answer is of use to prefill, more often
        if self._world.tape.chance(
            0.7 if self._world.draw.lends_checkpoints else 0.3, "with the answer"
        ):
            asked = next((c.submit for c in self.clients if c.submit.prompt == prompt), None)
            answer = (
                right_answer(prompt, asked.sampling, asked.limits, asked.grammar)[0]
                if asked is not None
                else []
            )
            prompt = (*prompt, *answer)[:LONGEST_PROMPT]
        more: int = (
            self._world.tape.below(LONGEST_MORE, "goes on")
            if self._world.tape.chance(0.5, "with more")
            else 0
        )
        more = max(0, min(more, LONGEST_PROMPT - len(prompt)))
        return prompt + tuple(
            TokenId(content.scramble(number * 64 + i) % content.VOCABULARY) for i in range(more)
        )

    def _length(self) -> int:
        """Draw the length of a new prompt. It is long enough to fill pages if these are always
        fetched back, or to fill wires in a crowd."""
        draw = self._world.draw
        lengths = LONG_PROMPTS if draw.crowded or draw.fetch_back is FetchBack.ALWAYS else PROMPTS
        if draw.lends_checkpoints and not draw.crowded:
            lengths = ANSWERED_PROMPTS
        found: int = lengths[self._world.tape.below(len(lengths), "prompt length")]
        return found

    def _answered(self) -> list[tuple[TokenId, ...]]:
        """Return prompts whose state may be fetched back from some decode worker: they have been
        answered and are long enough to fill a page."""
        if self._world.draw.fetch_back is FetchBack.NEVER:
            return []
        done = {c.submit.prompt for c in self.clients if isinstance(c.end, Finish)}
        page = max(w.page_blocks for w in self._world.draw.workers) * BLOCK_TOKENS
        return [prompt for prompt in self._prompts if prompt in done and len(prompt) > page]

    def _refused(self, client: Client, why: str) -> None:
        """Judge a gateway's refusal. It is excused in a crowd, in a world with faults, or if the
        request's own time is too short to wait."""
        world = self._world
        client.gone, client.ended_at = "refused", world.heap.now
        world.marks["refused"] += 1
        world.tell(f"client: {client.name} is refused: {why}")
        excused = (
            client.tight or not world.draw.clean or any(f.kind == "crowd" for f in world.all_faults)
        )
        if client.probe or not excused:
            world.violate(
                "no_spurious_failure", f"{client.name} was refused without an excuse: {why}"
            )

    def _too_long(self) -> int:
        """Draw a length that exceeds every pool, or the pool of some prefill worker while a decode
        worker may have space."""
        if self._world.tape.below(2, "too long for") == 0:
            return 400
        tokens: int = min(
            w.pages * w.page_blocks * BLOCK_TOKENS
            for w in self._world.draw.workers
            if w.role != "decode"
        )
        more: int = self._world.tape.below(8, "longer by")
        return tokens + more

    def _leave(self, client: Client) -> None:
        run = self._world.gateways[client.gateway]
        if client.open and run.process.alive:
            client.gone, client.ended_at = LEFT, self._world.heap.now
            self._world.marks["client left"] += 1
            self._world.tell(f"client: {client.name} leaves")
            run.step(Cancel(client.submit.request, "gone"))
            if self._world.tape.chance(self._world.faults().retry, "asks again"):
                self.ask()

    def lent(self, key: Key) -> None:
        """Decode lends state of a prompt; the client may leave while it is read."""
        request = RequestId(self._world.tickets[key].sampling.seed)
        if self._world.tape.chance(self._world.faults().abort, "client leaves during a loan"):
            after = 500 * self._world.tape.below(20, "leaves after")
            self._world.heap.after(after, self._leave, self.oracle.clients[request])

    def hear_if_there(self, heard: Heard) -> None:
        """Take what a gateway says, as its HTTP side passes it on: not to a client that has left,
        though an engine's answer was under way in the same turn."""
        if self.oracle.clients[heard.request].gone != LEFT:
            self.hear(heard)

    def hear(self, heard: Heard) -> None:
        """Take what a gateway says to a client."""
        client = self.oracle.hear(heard, self._world.heap.now)
        match heard:
            case Finish():
                self._world.marks["finished"] += 1
                self._world.tell(f"client: {client.name} finished with {len(client.tokens)} tokens")
            case Fail():
                self._judge(client, heard)

    def _judge(self, client: Client, fail: Fail) -> None:
        world, said = self._world, f"{fail.code.value}: {fail.detail}"
        world.marks[f"failed: {fail.code.value}"] += 1
        world.tell(f"client: {client.name} failed: {said}")
        if client.probe:
            if self._met_damage(fail):
                client.gone = MET_DAMAGE
                self.ask(probe=True)
                return
            world.violate("healed_succeeds", f"{client.name}, sent after healing, failed: {said}")
        also = OF_GUESTS.get(fail.code, frozenset()) if world.draw.guests else frozenset()
        if excuse(fail.code, world.all_faults, self._concerned(client, fail), also=also) is None:
            world.violate("no_spurious_failure", f"{client.name} failed without an excuse: {said}")
        if world.hostile and world.tape.chance(world.faults().retry, "asks again"):
            world.heap.after(50_000, self.ask)

    def _met_damage(self, fail: Fail) -> bool:
        """Whether every attempt of a probe may have met a damaged page of vLLM's cache. Guests find
        such pages when they are used, so each that was damaged before healing may end one attempt.
        """
        faults: list[InjectedFault] = self._world.all_faults
        damages = sum(fault.kind == "damage" for fault in faults)
        if self._world.draw.guests is None or CHANGED not in fail.detail:
            return False
        self._damage_met += FrontSettings().max_epochs
        return self._damage_met <= damages

    def _concerned(self, client: Client, fail: Fail) -> frozenset[str]:
        """Return the names of those whose faults may excuse this request's failure: its gateway,
        and the workers that its tickets named."""
        world, submit = self._world, client.submit
        rooms = {
            k.room
            for k, t in world.tickets.items()
            if (t.prompt, t.sampling) == (submit.prompt, submit.sampling)
        }
        names = {client.gateway, client.name}.union(*(world.concerned[room] for room in rooms))
        if not rooms or "no worker pair" in fail.detail:
            names |= {w.name for w in world.draw.workers}
        return frozenset(names)
