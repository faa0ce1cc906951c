"""`truncate_prompt_tokens`: only the last tokens of a prompt are used."""

from collections.abc import Sequence

from baton.gateway.door import Capacity
from baton.gateway.generation_config import Defaults
from baton.gateway.prompts import Prompt
from baton.gateway.schema import GenerationBody

WHAT_FITS = -1


def truncate(
    prompts: Sequence[Prompt], body: GenerationBody, *, capacity: Capacity, defaults: Defaults
) -> tuple[Prompt, ...]:
    """Return the last `truncate_prompt_tokens` tokens of every prompt.

    -1 keeps what fits beside the tokens that the request may generate, or beside one token if it
    names no number of them.
    """
    kept = body.truncate_prompt_tokens
    if kept is None:
        return tuple(prompts)
    if kept == WHAT_FITS:
        wanted = body.max_completion_tokens or body.max_tokens or 1
        if defaults.most_tokens is not None:
            wanted = min(wanted, defaults.most_tokens)
        # too many wanted tokens leave nothing: one token is kept, and ask.py refuses the number
        kept = max(1, min(capacity.max_model_len, capacity.pool_tokens) - wanted)
    return tuple(prompt[-kept:] for prompt in prompts)
