"""Structured output: from the fields of a request body to a grammar that workers can follow.

    response_format, structured_outputs, guided_* ──one──▶ text of a grammar ──checked──▶ Grammar

The fields are those of OpenAI, vLLM and SGLang. A request names at most one of them.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from baton.core.ids import TokenId
from baton.core.matchers import GrammarError
from baton.core.messages import Grammar
from baton.gateway.faults import refuse
from baton.gateway.grammar_checks import GrammarChecks
from baton.gateway.neutral import brief
from baton.gateway.schema import GenerationBody, ResponseFormat, StructuredOutputs
from baton.grammar import request as make
from baton.grammar.check import check
from baton.grammar.tag_formats import tagged
from baton.grammar.vocabulary import Vocabulary


class Wanted(msgspec.Struct, frozen=True):
    """What a request wants its answer to be, and the field that says so."""

    field: str
    kind: str
    value: Any
    white_space: str | None = None


MAKERS: Mapping[str, Callable[[Wanted], str]] = {
    "json": lambda w: make.json_schema(_schema(w), white_space=w.white_space),
    "json_object": lambda w: make.json_object(),
    "regex": lambda w: make.regex(w.value),
    "choice": lambda w: make.choice(w.value),
    "grammar": lambda w: make.context_free(w.value),
    "structural_tag": lambda w: _structural_tag(w),
}


def wanted(body: GenerationBody) -> Wanted | None:
    """Return what a body wants its answer to be; None = anything.

    Raises:
        HttpFault: 400; several fields say something, or one is incomplete
    """
    found = [*_of_response_format(body), *_of_structured_outputs(body), *_of_single_fields(body)]
    if len(found) > 1:
        names = " and ".join(w.field for w in found[:2])
        raise refuse(
            f"{names} both say what the answer must be; give one of them", param=found[1].field
        )
    return found[0] if found else None


def _of_response_format(body: GenerationBody) -> Iterator[Wanted]:
    said = body.response_format
    if said is None or said.type == "text":
        return
    field = body.called("response_format")
    match said:
        case ResponseFormat(type="json_object"):
            yield Wanted(field, "json_object", None)
        case ResponseFormat(type="json_schema", json_schema=about) if about is not None:
            yield Wanted(field, "json", {} if about.schema_ is None else about.schema_)
        case ResponseFormat(type="json_schema"):
            raise refuse(
                "response_format.json_schema is missing; it needs an object with name and schema",
                param=field,
            )
        case ResponseFormat(type="structural_tag"):
            yield Wanted(field, "structural_tag", said.model_dump(exclude_none=True))
        case _:
            raise refuse(
                f"response_format.type = {brief(said.type)}; there are text, json_object, "
                "json_schema, structural_tag",
                param=field,
            )


def _of_structured_outputs(body: GenerationBody) -> Iterator[Wanted]:
    said = body.structured_outputs
    if said is None:
        return
    if not _kinds(said):
        raise refuse(
            "structured_outputs says nothing; it needs json, json_object, regex, choice, grammar "
            "or structural_tag",
            param="structured_outputs",
        )
    white_space = "" if said.disable_any_whitespace else said.whitespace_pattern
    for kind, value in _kinds(said).items():
        yield Wanted("structured_outputs", kind, value, white_space)


def _kinds(said: StructuredOutputs) -> dict[str, Any]:
    found = {
        "json": said.json_,
        "json_object": said.json_object or None,
        "regex": said.regex,
        "choice": said.choice,
        "grammar": said.grammar,
        "structural_tag": said.structural_tag,
    }
    return {kind: value for kind, value in found.items() if value is not None}


# By field: what it says. Those of vLLM before structured_outputs, and those of SGLang.
SINGLE: Mapping[str, str] = {
    "guided_json": "json",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}


def _of_single_fields(body: GenerationBody) -> Iterator[Wanted]:
    for field, kind in SINGLE.items():
        value = getattr(body, field)
        if value is not None and value is not False:
            yield Wanted(field, kind, value, body.guided_whitespace_pattern)


def _schema(w: Wanted) -> make.Schema:
    """Return a JSON schema, which may be written as text.

    Raises:
        GrammarError: it is no object
    """
    try:
        found = json.loads(w.value) if isinstance(w.value, str) else w.value
    except (ValueError, RecursionError) as e:
        raise GrammarError(f"the schema {brief(w.value)} is not JSON: {e}") from e
    if not isinstance(found, (dict, bool)):
        raise GrammarError(f"the schema is {brief(found)}; it must be an object")
    return found


def _structural_tag(w: Wanted) -> str:
    """Return the grammar of a structural tag in either of its forms."""
    found = _schema(w)
    if isinstance(found, dict) and found.get("format") is not None:
        return tagged(found["format"])
    return make.structural_tag(*_tags(w))


def _tags(w: Wanted) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the structures and triggers of a structural tag.

    Raises:
        GrammarError: one of them is missing or of another type
    """
    found = _schema(w)
    said = found if isinstance(found, dict) else {}
    tags, triggers = said.get("structures"), said.get("triggers")
    if not isinstance(tags, list) or not isinstance(triggers, list):
        raise GrammarError(
            "a structural tag needs a `format`, or the lists `structures` (of begin, schema, end) "
            "and `triggers`"
        )
    for tag in tags:
        if (
            not isinstance(tag, dict)
            or not isinstance(tag.get("begin"), str)
            or not isinstance(tag.get("end"), str)
            or not isinstance(tag.get("schema"), (dict, bool))
        ):
            raise GrammarError(
                f"the structure {brief(tag)} needs the texts `begin` and `end` and a `schema`"
            )
    if not all(isinstance(t, str) and t for t in triggers):
        raise GrammarError("a trigger must be a text of at least one character")
    return tags, triggers


class GrammarMaker:
    """Makes and checks the grammars of one gateway's requests."""

    def __init__(
        self, vocabulary: Vocabulary, checks: GrammarChecks, *, ends: tuple[TokenId, ...]
    ) -> None:
        self._vocabulary, self._checks, self._ends = vocabulary, checks, ends

    async def of(
        self,
        body: GenerationBody,
        *,
        client: str,
        after: tuple[TokenId, ...] = (),
        around: Callable[[str], str] = str,
        framed: str = "",
    ) -> Grammar | None:
        """Return the grammar of a body; None if any answer will do.

        Args:
            client: who asks, for fairness among clients
            after: the tokens behind which it begins, as the model writes its reasoning before
            around: returns the grammar of the whole answer, of which this one is the content
            framed: a name of what `around` does

        Raises:
            HttpFault: 400, the message names the field and what is wrong with it; 429 or 503,
                checks of other grammars come first
        """
        found = wanted(body)
        if found is None:
            return None
        return await self.made(
            found.field,
            lambda: around(MAKERS[found.kind](found)),
            said=(found.kind, found.value, found.white_space, framed),
            client=client,
            after=after,
        )

    async def made(
        self,
        field: str,
        text: Callable[[], str],
        *,
        said: tuple[Any, ...],
        client: str,
        after: tuple[TokenId, ...],
    ) -> Grammar:
        """Return the grammar that `text` returns the text of; it may take its time.

        Args:
            said: what `text` depends on, in JSON's types

        Raises:
            HttpFault: 400, about `field`; 429 or 503, checks of other grammars come first
        """
        try:
            key = sha256(json.dumps([*said, after]).encode("utf-8", "surrogatepass")).digest()
            return await self._checks.grammar(key, client, lambda: self._make(text, after))
        except RecursionError as e:
            raise refuse(f"{field}: it is nested too deeply", param=field) from e
        except GrammarError as e:
            raise refuse(f"{field}: {e}", param=field) from e

    def _make(self, text: Callable[[], str], after: tuple[TokenId, ...]) -> Grammar:
        grammar = Grammar(text(), after, self._ends)
        check(grammar, self._vocabulary)
        return grammar
