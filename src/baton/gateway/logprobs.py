"""What logprobs a request wants: of its answer, and of its prompt."""

from collections.abc import Sequence

from baton.gateway.faults import refuse
from baton.gateway.prompts import Prompt
from baton.gateway.schema import ChatBody, CompletionBody, GenerationBody

# in one answer: tokens of all prompts, times the logprobs of each. The core carries them from
# process to process, and the gateway makes JSON of them while other requests wait.
PROMPT_ENTRIES = 65_536


def chat_logprobs(body: ChatBody, *, most: int) -> int | None:
    """Return the number of alternatives that a chat request wants for each token; None = no
    logprobs.

    Args:
        most: alternatives that are served

    Raises:
        HttpFault: 400, the number is out of range
    """
    if body.top_logprobs and not body.logprobs:
        raise refuse(
            f"top_logprobs = {body.top_logprobs} needs logprobs = true", param="top_logprobs"
        )
    return _bounded(body.top_logprobs or 0, "top_logprobs", most) if body.logprobs else None


def completion_logprobs(body: CompletionBody, *, most: int) -> int | None:
    """Return the number of alternatives that a completions request wants; None = no logprobs.
    Raises HttpFault."""
    return None if body.logprobs is None else _bounded(body.logprobs, "logprobs", most)


def prompt_scored(
    body: GenerationBody, prompts: Sequence[Prompt], *, most: int, vocab_size: int
) -> int | None:
    """Return the number of alternatives that must be known for each token of the prompts, for
    `prompt_logprobs` and for an echo with logprobs; None = no logprobs of prompts.

    Raises:
        HttpFault: 400, a number is out of range, the answer would be too large, or it is streamed
    """
    if body.stream and body.prompt_logprobs is not None:
        raise refuse(
            f"prompt_logprobs = {body.prompt_logprobs} is not served with stream = true; leave one "
            "of the two out",
            param="prompt_logprobs",
        )
    echoed = body.logprobs if isinstance(body, CompletionBody) and body.echo else None
    fields = {"prompt_logprobs": body.prompt_logprobs, "logprobs": echoed}
    for param, wanted in fields.items():
        if wanted is not None:
            _bounded(wanted, param, min(most, vocab_size))
            _require_small(wanted, param, prompts, choices=body.n or 1)
    return max((n for n in fields.values() if n is not None), default=None)


def _bounded(wanted: int, param: str, most: int) -> int:
    if wanted > most:
        raise refuse(f"{param} = {wanted}; at most {most} are served", param=param)
    return wanted


def _require_small(wanted: int, param: str, prompts: Sequence[Prompt], *, choices: int) -> None:
    tokens = choices * sum(map(len, prompts))
    entries = tokens * (wanted + 1)
    if entries > PROMPT_ENTRIES:
        raise refuse(
            f"{param} = {wanted} with {tokens} prompt tokens, counted for every choice, gives "
            f"{entries} logprobs; at most {PROMPT_ENTRIES} are served in one answer: ask for fewer "
            "alternatives, or send fewer or shorter prompts",
            param=param,
        )
