"""The bytes of answers of /v1/responses."""

from collections.abc import Mapping, Sequence
from itertools import count

import msgspec

from baton.core.messages import FinishReason
from baton.gateway.faults import HttpFault
from baton.gateway.forms import Heading
from baton.gateway.responses_answer import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    INCOMPLETE,
    ErrorEvent,
    Event,
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseCompleted,
    ResponseCreated,
    ResponseError,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponsesAnswer,
    ResponsesUsage,
)
from baton.gateway.responses_output import Logprobs, Output
from baton.gateway.responses_schema import ChosenFunction, ResponsesBody
from baton.gateway.scores import Speller, chat_logprobs
from baton.gateway.stream import Ending, Scored, TextDelta, TextStream

PREFIX = "resp_"
PLAIN_TEXT = {"type": "text"}
STATUS: Mapping[FinishReason, str] = {
    FinishReason.STOP: COMPLETED,
    FinishReason.LENGTH: INCOMPLETE,
}
# OpenAI's codes of failed answers, by HTTP status
ERROR_CODES: Mapping[int, str] = {429: "rate_limit_exceeded"}


def begun_answer(heading: Heading, body: ResponsesBody) -> ResponsesAnswer:
    """Return the answer to a request as it is before its first token."""
    choice, text, reasoning = body.tool_choice, body.text, body.reasoning
    form = text.format if text else None
    return ResponsesAnswer(
        id=heading.id,
        created_at=heading.created,
        status=IN_PROGRESS,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=heading.model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        temperature=heading.temperature,
        tool_choice=choice.model_dump() if isinstance(choice, ChosenFunction) else choice or "auto",
        tools=tuple(tool.model_dump(exclude_unset=True) for tool in body.tools or ()),
        top_logprobs=body.top_logprobs or 0,
        top_p=heading.top_p,
        reasoning={
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        text={
            "format": form.model_dump(by_alias=True, exclude_unset=True) if form else PLAIN_TEXT,
            "verbosity": "medium",
        },
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def _event(event: Event) -> bytes:
    name = event.__struct_config__.tag
    return b"event: %b\ndata: %b\n\n" % (str(name).encode(), msgspec.json.encode(event))


def _events(events: Sequence[Event]) -> bytes:
    return b"".join(map(_event, events))


class ResponsesForm:
    """/v1/responses. A request has one choice."""

    def __init__(self, heading: Heading, speller: Speller, *, body: ResponsesBody) -> None:
        self._begun = begun_answer(heading, body)
        self._scored, self._speller = heading.scored, speller
        self._numbers = count()
        self._output = Output(heading.id.removeprefix(PREFIX), self._numbers, self._logprobs)

    def opening(self, stream: TextStream) -> bytes:
        """The answer without any item."""
        if stream.reader is None and not self._scored:
            stream.wrap = self._text
        return _events(
            [
                ResponseCreated(sequence_number=next(self._numbers), response=self._begun),
                ResponseInProgress(sequence_number=next(self._numbers), response=self._begun),
            ]
        )

    def delta(self, stream: TextStream, piece: TextDelta) -> bytes:
        """What a piece adds to the items."""
        return _events(self._output.add(piece))

    def ending(self, stream: TextStream, piece: TextDelta, ending: Ending) -> bytes:
        """The rest of the items."""
        return _events(self._output.add(piece) + self._output.end(STATUS[ending.reason]))

    def closing(self, streams: Sequence[TextStream]) -> bytes:
        """The whole answer."""
        answer = self._answer(streams[0])
        kind = ResponseIncomplete if answer.status == INCOMPLETE else ResponseCompleted
        return _event(kind(sequence_number=next(self._numbers), response=answer))

    def failure(self, fault: HttpFault) -> bytes:
        """The error, which clients raise, and the answer with it."""
        said = fault.fault
        error = ErrorEvent(
            sequence_number=next(self._numbers),
            code=said.code,
            message=said.message,
            param=said.param,
            error=msgspec.structs.asdict(said),
        )
        answer = msgspec.structs.replace(
            self._begun,
            status=FAILED,
            error=ResponseError(ERROR_CODES.get(fault.status, "server_error"), said.message),
            output=tuple(self._output.items),
        )
        return _events(
            [error, ResponseFailed(sequence_number=next(self._numbers), response=answer)]
        )

    def whole(self, streams: Sequence[TextStream], pieces: Sequence[Sequence[TextDelta]]) -> bytes:
        """The undivided answer, which grows as a streamed one does."""
        (stream,), (mine,) = streams, pieces
        assert stream.ending is not None
        for piece in mine:
            self._output.add(piece)
        self._output.end(STATUS[stream.ending.reason])
        return msgspec.json.encode(self._answer(stream))

    def _text(self, text: str) -> bytes:
        return _events(self._output.add_text(text))

    def _logprobs(self, scored: Sequence[Scored]) -> Logprobs:
        return chat_logprobs(scored, self._speller).content

    def _answer(self, stream: TextStream) -> ResponsesAnswer:
        assert stream.ending is not None
        status = STATUS[stream.ending.reason]
        return msgspec.structs.replace(
            self._begun,
            status=status,
            incomplete_details=IncompleteDetails("max_output_tokens")
            if status == INCOMPLETE
            else None,
            output=tuple(self._output.items),
            usage=self._usage(stream),
        )

    def _usage(self, stream: TextStream) -> ResponsesUsage:
        prompt = len(stream.prompt)
        return ResponsesUsage(
            prompt,
            InputTokensDetails(stream.cached),
            stream.count,
            OutputTokensDetails(self._output.reasoning_tokens),
            prompt + stream.count,
        )
