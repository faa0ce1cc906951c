"""`echo`: the answer of a completion begins with the text of its prompt."""

from collections.abc import Callable, Sequence

import msgspec

from baton.gateway.detokenize import Detokenizer
from baton.gateway.prompts import Prompt, split_batch


class Echo(msgspec.Struct, frozen=True):
    """What a choice begins with. `offsets` has for each token of the prompt where its text begins,
    in characters; it is empty if no logprobs are wanted."""

    text: str
    offsets: tuple[int, ...] = ()


def echoes(
    given: str | list[int] | list[str] | list[list[int]],
    *,
    whole: Sequence[Prompt],
    kept: Sequence[Prompt],
    choices: int,
    decode: Callable[[Prompt], str],
    detokenizer: Callable[[], Detokenizer] | None,
) -> tuple[Echo, ...]:
    """Return for every choice what it begins with.

    This is the text as the client sent it; the decoded tokens if it sent tokens, or if the prompt
    was truncated.

    Args:
        given: the `prompt` of the request
        whole: its prompts
        kept: what was left of each of them
        choices: choices for each prompt
        decode: decodes a prompt as a whole
        detokenizer: begins a text, of which it says what each token adds; None = no offsets
    """
    texts = (
        one if isinstance(one, str) and len(some) == len(ids) else decode(some)
        for one, ids, some in zip(split_batch(given), whole, kept, strict=True)
    )
    each = (
        Echo(text, () if detokenizer is None else _offsets(prompt, detokenizer(), len(text)))
        for text, prompt in zip(texts, kept, strict=True)
    )
    return tuple(echo for echo in each for _ in range(choices))


def _offsets(prompt: Prompt, detokenizer: Detokenizer, most: int) -> tuple[int, ...]:
    """Return where the text of each token begins; no later than at the end of the shown text."""
    found, at = [], 0
    for token in prompt:
        found.append(min(at, most))
        at += len(detokenizer.push(token))
    return tuple(found)
