"""Grows the items of an answer of /v1/responses, and tells the events by which they grow.

reasoning ─▶ reasoning item ┐
text      ─▶ message        ├ one is open at a time; another kind, or another call, closes it
call      ─▶ function_call  ┘
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from msgspec import structs

from baton.gateway.responses_answer import (
    COMPLETED,
    IN_PROGRESS,
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    Item,
    ItemAdded,
    ItemDone,
    OutputCall,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTextDelta,
    OutputTextDone,
    PartAdded,
    PartDone,
    ReasoningText,
    ReasoningTextDelta,
    ReasoningTextDone,
)
from baton.gateway.scores import ChatLogprob
from baton.gateway.stream import Scored, TextDelta
from baton.gateway.tool_calls import Parsed, ToolCall

Logprobs = tuple[ChatLogprob, ...]
Numbers = Iterator[int]  # of events


class OpenItem(Protocol):
    """An item whose text grows."""

    def begin(self, numbers: Numbers) -> list[Event]:
        """Return the events of its beginning."""
        ...

    def write(self, numbers: Numbers, text: str, logprobs: Logprobs) -> Event:
        """Add a piece of text."""
        ...

    def end(self, numbers: Numbers, status: str) -> tuple[Item, list[Event]]:
        """Return the whole item, and the events of its end."""
        ...


class OpenMessage:
    """A message."""

    def __init__(self, unique: str, index: int) -> None:
        self._id, self._index = f"msg_{unique}", index
        self._texts: list[str] = []
        self._logprobs: list[ChatLogprob] = []

    def begin(self, numbers: Numbers) -> list[Event]:
        """The item, and its one part."""
        item = OutputMessage(self._id, (), IN_PROGRESS)
        return [
            ItemAdded(sequence_number=next(numbers), output_index=self._index, item=item),
            PartAdded(
                sequence_number=next(numbers),
                item_id=self._id,
                output_index=self._index,
                part=OutputText(""),
            ),
        ]

    def write(self, numbers: Numbers, text: str, logprobs: Logprobs) -> Event:
        """A piece, with the logprobs of its tokens."""
        self._texts.append(text)
        self._logprobs += logprobs
        return OutputTextDelta(
            sequence_number=next(numbers),
            item_id=self._id,
            output_index=self._index,
            delta=text,
            logprobs=logprobs,
        )

    def end(self, numbers: Numbers, status: str) -> tuple[Item, list[Event]]:
        """The text, the part and the item."""
        part = OutputText("".join(self._texts), tuple(self._logprobs))
        item = OutputMessage(self._id, (part,), status)
        return item, [
            OutputTextDone(
                sequence_number=next(numbers),
                item_id=self._id,
                output_index=self._index,
                text=part.text,
                logprobs=part.logprobs,
            ),
            PartDone(
                sequence_number=next(numbers),
                item_id=self._id,
                output_index=self._index,
                part=part,
            ),
            ItemDone(sequence_number=next(numbers), output_index=self._index, item=item),
        ]


class OpenReasoning:
    """A reasoning item."""

    def __init__(self, unique: str, index: int) -> None:
        self._id, self._index = f"rs_{unique}", index
        self._texts: list[str] = []

    def begin(self, numbers: Numbers) -> list[Event]:
        """The item, and its one part."""
        item = OutputReasoning(self._id, (), IN_PROGRESS)
        return [
            ItemAdded(sequence_number=next(numbers), output_index=self._index, item=item),
            PartAdded(
                sequence_number=next(numbers),
                item_id=self._id,
                output_index=self._index,
                part=ReasoningText(""),
            ),
        ]

    def write(self, numbers: Numbers, text: str, logprobs: Logprobs) -> Event:
        """A piece; reasoning has no logprobs."""
        self._texts.append(text)
        return ReasoningTextDelta(
            sequence_number=next(numbers), item_id=self._id, output_index=self._index, delta=text
        )

    def end(self, numbers: Numbers, status: str) -> tuple[Item, list[Event]]:
        """The text, the part and the item."""
        part = ReasoningText("".join(self._texts))
        item = OutputReasoning(self._id, (part,), status)
        return item, [
            ReasoningTextDone(
                sequence_number=next(numbers),
                item_id=self._id,
                output_index=self._index,
                text=part.text,
            ),
            PartDone(
                sequence_number=next(numbers),
                item_id=self._id,
                output_index=self._index,
                part=part,
            ),
            ItemDone(sequence_number=next(numbers), output_index=self._index, item=item),
        ]


class OpenCall:
    """A call of a function, whose arguments grow."""

    def __init__(self, unique: str, index: int, call: ToolCall) -> None:
        self._index, self._arguments = index, [""]
        self._item = OutputCall(f"fc_{unique}", call.id, call.name, "", IN_PROGRESS)

    def begin(self, numbers: Numbers) -> list[Event]:
        """The item."""
        return [ItemAdded(sequence_number=next(numbers), output_index=self._index, item=self._item)]

    def write(self, numbers: Numbers, text: str, logprobs: Logprobs) -> Event:
        """A piece of the arguments; they have no logprobs."""
        self._arguments.append(text)
        return ArgumentsDelta(
            sequence_number=next(numbers),
            item_id=self._item.id,
            output_index=self._index,
            delta=text,
        )

    def end(self, numbers: Numbers, status: str) -> tuple[Item, list[Event]]:
        """The arguments and the item."""
        item = structs.replace(self._item, arguments="".join(self._arguments), status=status)
        return item, [
            ArgumentsDone(
                sequence_number=next(numbers),
                item_id=item.id,
                output_index=self._index,
                name=item.name,
                arguments=item.arguments,
            ),
            ItemDone(sequence_number=next(numbers), output_index=self._index, item=item),
        ]


class Output:
    """The items of one answer.

    Attributes:
        items: those that have ended
        reasoning_tokens: tokens up to the last one that added to reasoning, less those of other
            items. If one step of the model adds to reasoning and to more, all its tokens count.

    Args:
        unique: part of the ids of all items
        numbers: of the events
        logprobs: makes the logprobs of tokens
    """

    def __init__(
        self, unique: str, numbers: Numbers, logprobs: Callable[[Sequence[Scored]], Logprobs]
    ) -> None:
        self.items: list[Item] = []
        self.reasoning_tokens = 0
        self._unique, self._numbers, self._logprobs = unique, numbers, logprobs
        self._open: OpenItem | None = None
        self._held = 0  # tokens that have added nothing yet
        self._scored: list[Scored] = []  # of tokens whose text has not come yet

    def add(self, piece: TextDelta) -> list[Event]:
        """Take what a step adds, in the order in which the model wrote it."""
        self._count(piece)
        self._scored += piece.scored
        found: list[Event] = []
        for part in piece.parts or (Parsed(piece.text, piece.reasoning, piece.calls),):
            if part.reasoning:
                found += self._write(OpenReasoning, part.reasoning, ())
            if part.content:
                found += self._write(OpenMessage, part.content, self._logprobs(self._scored))
                self._scored.clear()
            for call in part.calls:
                found += self._call(call)
        if piece.reasoning or piece.text or piece.calls:
            self._scored.clear()
        return found

    def add_text(self, text: str) -> list[Event]:
        """Take text without anything else, as `add` would."""
        return self._write(OpenMessage, text, ())

    def end(self, status: str) -> list[Event]:
        """End the item that is open; `status` is its status."""
        if self._open is None:
            return []
        item, found = self._open.end(self._numbers, status)
        self.items.append(item)
        self._open = None
        return found

    def _count(self, piece: TextDelta) -> None:
        self._held += len(piece.tokens)
        if piece.reasoning:
            self.reasoning_tokens += self._held
        if piece.reasoning or piece.text or piece.calls:
            self._held = 0

    def _write(
        self, kind: type[OpenMessage] | type[OpenReasoning], text: str, logprobs: Logprobs
    ) -> list[Event]:
        found: list[Event] = []
        if not isinstance(self._open, kind):
            found += self.end(COMPLETED)
            self._open = kind(self._next_unique(), len(self.items))
            found += self._open.begin(self._numbers)
        found.append(self._open.write(self._numbers, text, logprobs))
        return found

    def _call(self, call: ToolCall) -> list[Event]:
        found: list[Event] = []
        if call.begins:
            found += self.end(COMPLETED)
            self._open = OpenCall(self._next_unique(), len(self.items), call)
            found += self._open.begin(self._numbers)
        assert self._open is not None, "pieces of a call follow each other"
        if call.arguments:
            found.append(self._open.write(self._numbers, call.arguments, ()))
        return found + self.end(COMPLETED) if call.ends else found

    def _next_unique(self) -> str:
        return f"{self._unique}{len(self.items):03x}"
