"""Request bodies as OpenAI and vLLM define them. No other module uses pydantic models.

Bounds that do not depend on the model are stated here; ask.py checks the others. Unknown fields are
kept in `model_extra`; neutral.py refuses those that would change the answer.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

STOP_STRINGS = 64
STOP_CHARS = 512
CHOICES = 128  # n
BIASES = 1024  # entries of logit_bias
SALT_CHARS = 512  # of cache_salt
LISTED = 4096  # messages, or prompts

Whole64 = Annotated[int, Field(ge=-(1 << 63), le=(1 << 64) - 1)]
Count = Annotated[int, Field(ge=1, le=1 << 31)]
StopString = Annotated[str, Field(min_length=1, max_length=STOP_CHARS)]
Token = Annotated[int, Field(ge=0, le=1 << 31)]
# A list fails at its first bad item, so that a large body of bad items does not make a larger list
# of errors.
Tokens = Annotated[list[Token], Field(fail_fast=True)]


class Body(BaseModel):
    """Base of all bodies: JSON types are not converted, and numbers must be finite."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingBody(Body):
    """Sampling parameters, of requests and of generation_config.json. Null counts as absent."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None


class GenerationConfigBody(SamplingBody):
    """The fields of generation_config.json that are read, under transformers' names."""

    max_new_tokens: Count | None = None
    eos_token_id: Token | Tokens | None = None


class GenerationBody(SamplingBody):
    """The fields that both endpoints accept. Null counts as absent."""

    model: str | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    seed: Whole64 | None = None
    stop: (
        StopString
        | Annotated[list[StopString], Field(max_length=STOP_STRINGS, fail_fast=True)]
        | None
    ) = None
    stop_token_ids: Annotated[list[Token], Field(max_length=1024, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=BIASES)]
        | None
    ) = None
    min_tokens: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=SALT_CHARS)] | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: (
        str
        | Tokens
        | Annotated[list[str], Field(fail_fast=True, max_length=LISTED)]
        | Annotated[list[Tokens], Field(fail_fast=True, max_length=LISTED)]
    )
    max_tokens: Count | None = 16  # the default of OpenAI and vLLM; null = the rest of the context
    logprobs: Annotated[int, Field(ge=0)] | None = None


class TextPart(Body):
    """A part of a message's content. Only `text` is served."""

    type: str
    text: str | None = None


class ChatMessage(Body):
    """One message of a conversation."""

    role: str
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=LISTED, fail_fast=True)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
