"""Turns a parsed request body and its prompts into requests to the core, with every limit and
sampling parameter explicit."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from baton.core.ids import TokenId
from baton.core.messages import Grammar, Limits, Sampling, Shaping
from baton.core.mixing import MASK, mix64
from baton.gateway.door import Capacity
from baton.gateway.faults import HttpFault, refuse
from baton.gateway.masks import Word, allowed_token_ids, require_some_left
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
    grammar: Grammar | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    shaping: Shaping | None
    logprobs: int | None
    prompt_logprobs: int | None
    prompt_scored: int | None  # what the core computes, for that and for an echo with logprobs
    # max_tokens = 0: one token is generated, which is not shown or counted
    prompt_only: bool
    priority: int
    # requests share cached state only with requests of the same salt; empty = no salt
    cache_salt: str
    stops: tuple[str, ...]
    stop_token_ids: tuple[TokenId, ...]
    stream: bool
    usage: bool  # whether a stream reports usage; an undivided answer always does
    running_usage: bool  # whether every chunk of a stream reports usage
    token_ids: bool
    tokens_as_ids: bool  # logprobs show "token_id:5" instead of the token's text
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    include_stop: bool
    traceparent: str = ""  # by which the client's trace goes on

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
            prompt_logprobs=self.prompt_scored,
        )


class Terms(msgspec.Struct, frozen=True):
    """What a request is validated against: settings, workers' capacity, vocabulary, its timeout."""

    settings: HttpSettings
    capacity: Capacity
    eos_ids: tuple[TokenId, ...]
    vocab_size: int
    deadline_ms: int
    traceparent: str = ""


def understand(
    body: GenerationBody,
    prompts: Sequence[Prompt],
    *,
    logprobs: int | None,
    prompt_scored: int | None,
    terms: Terms,
    grammar: Grammar | None = None,
    bad_words: Sequence[Word] = (),
) -> Ask:
    """Validate everything that needs the model or several fields at once.

    Args:
        bad_words: those of the body, as tokens

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
    each = [(p, _limits(body, p, terms, grammar)) for p in prompts]
    shaping = _shaping(body, terms, bad_words)
    if shaping is not None:
        require_some_left(shaping, each[0][1], vocab_size=terms.vocab_size)
    return Ask(
        orders=tuple(Order(p, limits, choice) for p, limits in each for choice in range(n)),
        grammar=grammar,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=_either(body.top_p, defaults.top_p),
        top_k=max(0, _either(body.top_k, defaults.top_k)),
        min_p=_either(body.min_p, defaults.min_p),
        seed=body.seed,
        shaping=shaping,
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
        prompt_scored=prompt_scored,
        prompt_only=isinstance(body, CompletionBody) and _asked_tokens(body) == 0,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        stops=tuple(dict.fromkeys(stops)),
        stop_token_ids=tuple(map(TokenId, stop_ids)),
        stream=bool(body.stream),
        usage=usage,
        running_usage=usage and bool(options and options.continuous_usage_stats),
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        skip_special_tokens=_either(body.skip_special_tokens, True),
        spaces_between_special_tokens=_either(body.spaces_between_special_tokens, True),
        include_stop=bool(body.include_stop_str_in_output),
        traceparent=terms.traceparent,
    )


def _either(said: T | None, default: T) -> T:
    return default if said is None else said


def require_plain_best_of(body: CompletionBody) -> None:
    """Refuse a `best_of` that asks for more choices than are answered. Raises HttpFault."""
    n = body.n or 1
    if body.best_of not in (None, n):
        raise refuse(
            f"best_of = {body.best_of} is not supported; supported: its absence or {n}, which is n",
            param="best_of",
        )


def require_something(body: CompletionBody) -> None:
    """Refuse a request that generates nothing and wants nothing of its prompt. Raises HttpFault."""
    if _asked_tokens(body) == 0 and not body.echo and body.prompt_logprobs is None:
        raise refuse(
            "max_tokens = 0 generates nothing, and nothing else is asked for; set it to 1 or more, "
            "or set echo = true or prompt_logprobs",
            param="max_tokens",
        )


def _shaping(body: GenerationBody, terms: Terms, words: Sequence[Word]) -> Shaping | None:
    defaults = terms.settings.defaults
    found = Shaping(
        repetition_penalty=_either(body.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_either(body.presence_penalty, defaults.presence_penalty),
        frequency_penalty=_either(body.frequency_penalty, defaults.frequency_penalty),
        logit_bias=tuple(
            (_biased(token, terms), bias) for token, bias in (body.logit_bias or {}).items()
        ),
        allowed_token_ids=allowed_token_ids(body.allowed_token_ids, vocab_size=terms.vocab_size),
        bad_words=tuple(words),
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


def _limits(body: GenerationBody, prompt: Prompt, terms: Terms, grammar: Grammar | None) -> Limits:
    most = _max_tokens(body, len(prompt), terms)
    # An answer that follows a grammar must be able to end when it is complete. So with a grammar
    # `ignore_eos` bars the end tokens, and they are drawn only where nothing else may follow.
    endless = bool(body.ignore_eos)
    found = Limits(
        max_tokens=max(1, most),  # the core always generates one
        stop_token_ids=tuple(map(TokenId, body.stop_token_ids or ())),
        eos_token_ids=() if endless and grammar is None else terms.eos_ids,
        deadline_ms=terms.deadline_ms,
        min_tokens=most if endless and grammar is not None else body.min_tokens or 0,
    )
    if found.min_tokens > most:
        raise refuse(
            f"min_tokens = {found.min_tokens} is more than the {most} tokens that may be generated",
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


def _asked_tokens(body: GenerationBody) -> int | None:
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _wanted_tokens(body: GenerationBody, prompt_tokens: int, terms: Terms) -> int:
    capacity, default = terms.capacity, terms.settings.defaults.max_tokens
    named = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    wanted = _asked_tokens(body)
    room = min(capacity.max_model_len, capacity.pool_tokens)
    what = (
        "the model's context" if room == capacity.max_model_len else "the smallest worker's memory"
    )
    left = room - prompt_tokens
    if left < 1:
        param, noun = (
            (body.called("messages"), "the prompt of these messages")
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
        named = body.called(named)
        message = (
            f"the prompt has {prompt_tokens} tokens and {named} = {wanted}, "
            f"{prompt_tokens + wanted} together"
        )
        raise _too_long(f"{message}; {what} is {room} tokens", named)
    return wanted


def _too_long(message: str, param: str) -> HttpFault:
    return refuse(message, param=param, code="context_length_exceeded")
