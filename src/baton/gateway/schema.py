"""Request bodies as OpenAI and vLLM define them; messages_schema.py has those of Anthropic.

Bounds that do not depend on the model are stated here; ask.py checks the others. Unknown fields are
kept in `model_extra`; neutral.py refuses those that would change the answer.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from baton.grammar.limits import CHOICES as CHOICES_LISTED
from baton.grammar.limits import TEXT_CHARS

STOP_STRINGS = 64
STOP_CHARS = 512
CHOICES = 128  # n
BIASES = 1024  # entries of logit_bias
ALLOWED = 4096  # entries of allowed_token_ids
BAD_WORDS = 256
BAD_WORD_CHARS = 128
SALT_CHARS = 512  # of cache_salt
LISTED = 4096  # messages, or prompts
TOOLS = 512  # of one request, and calls of one message
NAME = r"^[a-zA-Z0-9_./-]{1,128}$"  # of a function
PATTERN_CHARS = 512  # of the white space in JSON

Whole64 = Annotated[int, Field(ge=-(1 << 63), le=(1 << 64) - 1)]
Count = Annotated[int, Field(ge=1, le=1 << 31)]
StopString = Annotated[str, Field(min_length=1, max_length=STOP_CHARS)]
BadWord = Annotated[str, Field(min_length=1, max_length=BAD_WORD_CHARS)]
Token = Annotated[int, Field(ge=0, le=1 << 31)]
GrammarText = Annotated[str, Field(min_length=1, max_length=TEXT_CHARS)]
Choices = Annotated[list[str], Field(max_length=CHOICES_LISTED, fail_fast=True)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# A list fails at its first bad item, so that a large body of bad items does not make a larger list
# of errors.
Tokens = Annotated[list[Token], Field(fail_fast=True)]


class Body(BaseModel):
    """Base of all bodies: JSON types are not converted, and numbers must be finite.

    Attributes:
        NAMES: what clients call a field, where that is not its name here
    """

    NAMES: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    def called(self, field: str) -> str:
        """Return the name under which the client knows a field."""
        return self.NAMES.get(field, field)


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


class JsonSchemaFormat(Body):
    """The schema of a response format. `name`, `description` and `strict` change nothing: every
    schema is followed strictly."""

    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Body):
    """What the answer must be: OpenAI's field, with SGLang's and vLLM's structural tags."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    structures: list[Any] | None = None
    triggers: list[Any] | None = None
    format: dict[str, Any] | None = None


class StructuredOutputs(Body):
    """What the answer must be: vLLM's field. One of the first six is given."""

    json_: dict[str, Any] | bool | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: GrammarText | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    structural_tag: dict[str, Any] | GrammarText | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: Annotated[str, Field(max_length=PATTERN_CHARS)] | None = None


class ModelBody(Body):
    """A request that may name the model."""

    model: str | None = None


class RequestBody(SamplingBody, ModelBody):
    """The fields that chats, completions and responses accept. Null counts as absent."""

    seed: Whole64 | None = None
    stop: (
        StopString
        | Annotated[list[StopString], Field(max_length=STOP_STRINGS, fail_fast=True)]
        | None
    ) = None
    stop_token_ids: Annotated[list[Token], Field(max_length=1024, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=BIASES)]
        | None
    ) = None
    allowed_token_ids: (
        Annotated[list[Token], Field(min_length=1, max_length=ALLOWED, fail_fast=True)] | None
    ) = None
    bad_words: Annotated[list[BadWord], Field(max_length=BAD_WORDS, fail_fast=True)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=SALT_CHARS)] | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: Literal[-1] | Count | None = None


class GenerationBody(RequestBody):
    """The fields that chats and completions accept. Null counts as absent."""

    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_json_object: bool | None = None
    guided_regex: GrammarText | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None
    guided_whitespace_pattern: Annotated[str, Field(max_length=PATTERN_CHARS)] | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: GrammarText | None = None
    ebnf: GrammarText | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0)] | None = None
    kv_transfer_params: dict[str, Any] | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: (
        str
        | Tokens
        | Annotated[list[str], Field(fail_fast=True, max_length=LISTED)]
        | Annotated[list[Tokens], Field(fail_fast=True, max_length=LISTED)]
    )
    # the default is that of OpenAI and vLLM; null = the rest of the context
    max_tokens: Annotated[int, Field(ge=0, le=1 << 31)] | None = 16
    logprobs: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    add_special_tokens: bool | None = None


class TextPart(Body):
    """A part of a message's content. Only `text` is served."""

    type: str
    text: str | None = None


class FunctionCall(Body):
    """What an earlier message called; `arguments` is the text of a JSON object."""

    name: str
    arguments: str


class ToolCallIn(Body):
    """One call of an earlier message of the assistant."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Body):
    """One message of a conversation."""

    role: str
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCallIn], Field(max_length=TOOLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class Function(Body):
    """A function that the model may call. `parameters` is a JSON schema of its arguments."""

    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """One entry of `tools`."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    """The function that a named `tool_choice` asks for."""

    name: str


class NamedTool(Body):
    """A `tool_choice` that names a function."""

    type: Literal["function"]
    function: NamedFunction


class TemplateBody(Body):
    """What a chat template is given besides messages."""

    tools: Annotated[list[Tool], Field(max_length=TOOLS, fail_fast=True)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class ChatBody(GenerationBody, TemplateBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=LISTED, fail_fast=True)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None


class TokenizeBody(ModelBody, TemplateBody):
    """POST /tokenize: a prompt or messages."""

    prompt: str | None = None
    messages: (
        Annotated[list[ChatMessage], Field(min_length=1, max_length=LISTED, fail_fast=True)] | None
    ) = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(ModelBody):
    """POST /detokenize."""

    tokens: Tokens
