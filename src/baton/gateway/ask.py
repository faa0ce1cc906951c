"""From a checked request body and its prompts to what the core is asked: sampling, limits, stop strings."""

from collections.abc import Sequence

import msgspec

from baton.core.ids import TokenId
from baton.core.messages import Limits, Sampling
from baton.gateway.door import Capacity
from baton.gateway.faults import HttpFault, refuse
from baton.gateway.prompts import Prompt
from baton.gateway.schema import ChatBody, CompletionBody, GenerationBody
from baton.gateway.settings import GatewaySettings

GREEDY_BELOW = 1e-5  # a temperature this small draws the most likely token anyway, and dividing by it overflows


class Order(msgspec.Struct, frozen=True):
    """One prompt with the limits that hold for it."""

    prompt: Prompt
    limits: Limits


class Ask(msgspec.Struct, frozen=True):
    """One HTTP request, understood. `sampling.seed` is the client's; None in `seed` asks for one per order."""

    orders: tuple[Order, ...]
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    logprobs: int | None
    stops: tuple[str, ...]
    stop_token_ids: tuple[TokenId, ...]
    stream: bool
    usage: bool  # of a stream; an undivided answer always has it
    token_ids: bool

    def sampling(self, fresh_seed: int) -> Sampling:
        """How tokens are drawn; `fresh_seed` counts where the client gave none."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=fresh_seed if self.seed is None else self.seed % (1 << 64),
            logprobs=self.logprobs,
        )


class Terms(msgspec.Struct, frozen=True):
    """What requests are judged by: the operator's settings, what the workers hold, the model's vocabulary."""

    settings: GatewaySettings
    capacity: Capacity
    eos_ids: tuple[TokenId, ...]
    vocab_size: int


def understand(body: GenerationBody, prompts: Sequence[Prompt], *, logprobs: int | None, terms: Terms) -> Ask:
    """Judge everything that needs the model or several fields at once.

    Raises:
        HttpFault: 400, naming the field, its value and the limit
    """
    if body.n is not None and body.n != 1:
        raise refuse(f"n = {body.n} is not supported; supported: 1", param="n")
    if body.stream_options is not None and not body.stream:
        raise refuse("stream_options is only allowed with stream = true", param="stream_options")
    stop_ids = body.stop_token_ids or []
    top = max(stop_ids, default=0)
    if top >= terms.vocab_size:
        raise refuse(
            f"stop_token_ids holds {top}; this model's vocabulary ends at {terms.vocab_size - 1}", param="stop_token_ids"
        )
    temperature = 1.0 if body.temperature is None else body.temperature
    stops = [] if body.stop is None else [body.stop] if isinstance(body.stop, str) else body.stop
    return Ask(
        orders=tuple(Order(p, _limits(body, p, terms)) for p in prompts),
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        seed=body.seed,
        logprobs=logprobs,
        stops=tuple(dict.fromkeys(stops)),
        stop_token_ids=tuple(map(TokenId, stop_ids)),
        stream=bool(body.stream),
        usage=bool(body.stream_options and body.stream_options.include_usage),
        token_ids=bool(body.return_token_ids),
    )


def chat_logprobs(body: ChatBody, settings: GatewaySettings) -> int | None:
    """How many alternatives a chat request wants beside each token; None for no logprobs at all. Raises HttpFault."""
    if body.top_logprobs and not body.logprobs:
        raise refuse(f"top_logprobs = {body.top_logprobs} needs logprobs = true", param="top_logprobs")
    return _bounded(body.top_logprobs or 0, "top_logprobs", settings) if body.logprobs else None


def completion_logprobs(body: CompletionBody, settings: GatewaySettings) -> int | None:
    """The same for a completions request."""
    return None if body.logprobs is None else _bounded(body.logprobs, "logprobs", settings)


def _bounded(wanted: int, param: str, settings: GatewaySettings) -> int:
    if wanted > settings.max_logprobs:
        raise refuse(f"{param} = {wanted}; at most {settings.max_logprobs} are served", param=param)
    return wanted


def _limits(body: GenerationBody, prompt: Prompt, terms: Terms) -> Limits:
    return Limits(
        max_tokens=_max_tokens(body, len(prompt), terms.capacity),
        stop_token_ids=tuple(map(TokenId, body.stop_token_ids or ())),
        eos_token_ids=() if body.ignore_eos else terms.eos_ids,
        deadline_ms=terms.settings.deadline_ms,
    )


def _max_tokens(body: GenerationBody, prompt_tokens: int, capacity: Capacity) -> int:
    named = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    room = min(capacity.max_model_len, capacity.pool_tokens)
    what = "the model's context" if room == capacity.max_model_len else "the smallest worker's memory"
    if wanted is None:
        if prompt_tokens >= room:
            raise _too_long(f"the prompt has {prompt_tokens} tokens; {what} of {room} tokens leaves none to generate")
        return room - prompt_tokens
    if prompt_tokens + wanted > room:
        raise _too_long(
            f"the prompt has {prompt_tokens} tokens and {named} = {wanted}, "
            f"{prompt_tokens + wanted} together; {what} is {room} tokens"
        )
    return wanted


def _too_long(message: str) -> HttpFault:
    return refuse(message, param="max_tokens", code="context_length_exceeded")
