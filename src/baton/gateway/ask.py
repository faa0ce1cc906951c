"""Turns a parsed request body and its prompts into requests to the core, with every limit and
sampling parameter explicit."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from baton.core.ids import TokenId
from baton.core.messages import Limits, Sampling, Shaping
from baton.core.mixing import MASK, mix64
from baton.gateway.door import Capacity
from baton.gateway.faults import HttpFault, refuse
from baton.gateway.neutral import brief
from baton.gateway.prompts import Prompt
from baton.gateway.schema import CHOICES, ChatBody, CompletionBody, GenerationBody
from baton.gateway.settings import HttpSettings

# a temperature this small draws the most likely token anyway, and dividing by it overflows
GREEDY_BELOW = 1e-5
T = TypeVar("T")

NO_SHAPING = Shaping(
    repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=()
)


class Order(msgspec.Struct, frozen=True):
    """One choice: its prompt, its limits, and its index among the prompt's `n` choices."""

    prompt: Prompt
    limits: Limits
    choice: int


class Ask(msgspec.Struct, frozen=True):
    """One HTTP request, validated.

    `orders` has `n` entries for each prompt, prompt by prompt. Without a `seed` every order gets a
    fresh one.
    """

    orders: tuple[Order, ...]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    shaping: Shaping | None
    logprobs: int | None
    priority: int
    # requests share cached state only with requests of the same salt; empty = no salt
    cache_salt: str
    stops: tuple[str, ...]
    stop_token_ids: tuple[TokenId, ...]
    stream: bool
    usage: bool  # whether a stream reports usage; an undivided answer always does
    running_usage: bool  # whether every chunk of a stream reports usage
    token_ids: bool

    def sampling(self, order: Order, *, fresh_seed: int) -> Sampling:
        """Return the sampling parameters of an order; `fresh_seed` is used if the client gave no
        seed.

        Choice i of a prompt draws from mix64(seed, i) for every `n`, so the first of many choices
        is the one that n = 1 gives.
        """
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=fresh_seed if self.seed is None else mix64(self.seed & MASK, order.choice),
            logprobs=self.logprobs,
            min_p=self.min_p,
            shaping=self.shaping,
        )


class Terms(msgspec.Struct, frozen=True):
    """What a request is validated against: settings, workers' capacity, vocabulary, its timeout."""

    settings: HttpSettings
    capacity: Capacity
    eos_ids: tuple[TokenId, ...]
    vocab_size: int
    deadline_ms: int


def understand(
    body: GenerationBody, prompts: Sequence[Prompt], *, logprobs: int | None, terms: Terms
) -> Ask:
    """Validate everything that needs the model or several fields at once.

    Raises:
        HttpFault: 400; the message names the field, its value and the limit
    """
    n = body.n or 1
    if n * len(prompts) > CHOICES:
        raise refuse(
            f"{len(prompts)} prompts with n = {n}; at most {CHOICES} choices are "
            "served in one request",
            param="n",
        )
    if body.stream_options is not None and not body.stream:
        raise refuse("stream_options is only allowed with stream = true", param="stream_options")
    stop_ids = body.stop_token_ids or []
    top = max(stop_ids, default=0)
    if top >= terms.vocab_size:
        raise refuse(
            f"stop_token_ids holds {top}; this model's vocabulary ends at {terms.vocab_size - 1}",
            param="stop_token_ids",
        )
    defaults = terms.settings.defaults
    temperature = _either(body.temperature, defaults.temperature)
    stops = [] if body.stop is None else [body.stop] if isinstance(body.stop, str) else body.stop
    options = body.stream_options
    usage = bool(options and options.include_usage)
    each = [(p, _limits(body, p, terms)) for p in prompts]
    return Ask(
        orders=tuple(Order(p, limits, choice) for p, limits in each for choice in range(n)),
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=_either(body.top_p, defaults.top_p),
        top_k=max(0, _either(body.top_k, defaults.top_k)),
        min_p=_either(body.min_p, defaults.min_p),
        seed=body.seed,
        shaping=_shaping(body, terms),
        logprobs=logprobs,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        stops=tuple(dict.fromkeys(stops)),
        stop_token_ids=tuple(map(TokenId, stop_ids)),
        stream=bool(body.stream),
        usage=usage,
        running_usage=usage and bool(options and options.continuous_usage_stats),
        token_ids=bool(body.return_token_ids),
    )


def _either(said: T | None, default: T) -> T:
    return default if said is None else said


def chat_logprobs(body: ChatBody, settings: HttpSettings) -> int | None:
    """Return the number of alternatives that a chat request wants for each token; None = no
    logprobs.

    Raises:
        HttpFault: 400, the number is out of range
    """
    if body.top_logprobs and not body.logprobs:
        raise refuse(
            f"top_logprobs = {body.top_logprobs} needs logprobs = true", param="top_logprobs"
        )
    return _bounded(body.top_logprobs or 0, "top_logprobs", settings) if body.logprobs else None


def completion_logprobs(body: CompletionBody, settings: HttpSettings) -> int | None:
    """Return the number of alternatives that a completions request wants; None = no logprobs."""
    return None if body.logprobs is None else _bounded(body.logprobs, "logprobs", settings)


def _bounded(wanted: int, param: str, settings: HttpSettings) -> int:
    if wanted > settings.max_logprobs:
        raise refuse(f"{param} = {wanted}; at most {settings.max_logprobs} are served", param=param)
    return wanted


def _shaping(body: GenerationBody, terms: Terms) -> Shaping | None:
    defaults = terms.settings.defaults
    found = Shaping(
        repetition_penalty=_either(body.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_either(body.presence_penalty, defaults.presence_penalty),
        frequency_penalty=_either(body.frequency_penalty, defaults.frequency_penalty),
        logit_bias=tuple(
            (_biased(token, terms), bias) for token, bias in (body.logit_bias or {}).items()
        ),
    )
    return None if found == NO_SHAPING else found


def _biased(token: str, terms: Terms) -> TokenId:
    plain = (
        token.isascii()
        and token.isdigit()
        and len(token) <= 10
        and (token == "0" or token[0] != "0")
    )
    if not plain or int(token) >= terms.vocab_size:
        raise refuse(
            f"logit_bias has the key {brief(token)}; keys are token ids from 0 to "
            f"{terms.vocab_size - 1}",
            param="logit_bias",
        )
    return TokenId(int(token))


def _limits(body: GenerationBody, prompt: Prompt, terms: Terms) -> Limits:
    found = Limits(
        max_tokens=_max_tokens(body, len(prompt), terms),
        stop_token_ids=tuple(map(TokenId, body.stop_token_ids or ())),
        eos_token_ids=() if body.ignore_eos else terms.eos_ids,
        deadline_ms=terms.deadline_ms,
        min_tokens=body.min_tokens or 0,
    )
    if found.min_tokens > found.max_tokens:
        raise refuse(
            f"min_tokens = {found.min_tokens} is more than the {found.max_tokens} tokens that "
            "may be generated",
            param="min_tokens",
        )
    if found.min_tokens and len({*found.stop_token_ids, *found.eos_token_ids}) >= terms.vocab_size:
        raise refuse(
            "min_tokens with every token a stop token leaves none to generate", param="min_tokens"
        )
    return found


def _max_tokens(body: GenerationBody, prompt_tokens: int, terms: Terms) -> int:
    wanted = _wanted_tokens(body, prompt_tokens, terms)
    most = terms.settings.defaults.most_tokens
    return wanted if most is None else min(wanted, most)


def _wanted_tokens(body: GenerationBody, prompt_tokens: int, terms: Terms) -> int:
    capacity, default = terms.capacity, terms.settings.defaults.max_tokens
    named = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    room = min(capacity.max_model_len, capacity.pool_tokens)
    what = (
        "the model's context" if room == capacity.max_model_len else "the smallest worker's memory"
    )
    left = room - prompt_tokens
    if left < 1:
        param, noun = (
            ("messages", "the prompt of these messages")
            if isinstance(body, ChatBody)
            else ("prompt", "the prompt")
        )
        raise _too_long(
            f"{noun} has {prompt_tokens} tokens; {what} of {room} tokens leaves none to generate",
            param,
        )
    if wanted is None:
        return left if default is None else min(default, left)
    # a default: it is reduced to what is left of the context
    if named not in body.model_fields_set:
        return min(wanted, left)
    if wanted > left:
        message = (
            f"the prompt has {prompt_tokens} tokens and {named} = {wanted}, "
            f"{prompt_tokens + wanted} together"
        )
        raise _too_long(f"{message}; {what} is {room} tokens", named)
    return wanted


def _too_long(message: str, param: str) -> HttpFault:
    return refuse(message, param=param, code="context_length_exceeded")
