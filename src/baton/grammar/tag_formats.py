"""Structural tags in the form that names formats, as vLLM and SGLang take them: the grammar of an
answer from a tree of formats.

    {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", ..}, "end": "</f>"}

Free text ends with the first text that may follow it, so something must say what follows.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from baton.core.matchers import GrammarError
from baton.grammar import request as make
from baton.grammar.limits import NESTING, TEXT_CHARS

Format = Mapping[str, Any]
# The texts that follow a format; () = something else does, None = nothing, the answer is complete.
Ends = tuple[str, ...] | None
TEXT = r"/(.|\n)*/"


class Kind(msgspec.Struct, frozen=True):
    """What a format may say.

    Attributes:
        needs: fields and their types
        neutral: other fields, and the value that says nothing
    """

    needs: Mapping[str, tuple[type, ...]]
    neutral: Mapping[str, Any] = {}


KINDS: Mapping[str, Kind] = {
    "const_string": Kind({"value": (str,)}),
    "json_schema": Kind({"json_schema": (dict, bool)}, {"style": "json", "any_order": False}),
    "regex": Kind({"pattern": (str,)}, {"excludes": []}),
    "grammar": Kind({"grammar": (str,)}),
    "any_text": Kind({}, {"excludes": [], "max_tokens": None, "max_chars": None}),
    "sequence": Kind({"elements": (list,)}),
    "or": Kind({"elements": (list,)}),
    "tag": Kind({"begin": (str,), "content": (dict,), "end": (str, list)}),
    "triggered_tags": Kind({"triggers": (list,), "tags": (list,)}, {"excludes": []}),
}
SWITCHES = ("at_least_one", "stop_after_first")  # of triggered_tags
TYPES: Mapping[type, str] = {str: "text", list: "list", dict: "object", bool: "boolean"}


def tagged(root: Any) -> str:
    """Return the grammar of an answer that has a format.

    Raises:
        GrammarError: a format is not served, or says too little; the text names it
    """
    if (depth := make.nesting(root)) > NESTING:
        raise GrammarError(f"the format has {depth} levels; at most {NESTING} are served")
    writer = _Writer()
    return writer.text(writer.written(root, None))


class _Writer:
    """Writes the rules of a Lark grammar, and grammars beside it."""

    def __init__(self) -> None:
        self._rules: list[str] = []
        self._beside: list[dict[str, Any]] = []
        self._of: Mapping[str, Callable[[Format, Ends], str]] = {
            "const_string": lambda f, ends: f"{_quoted(f['value'])} {self._end(ends)}",
            "json_schema": lambda f, ends: f"{_schema(f['json_schema'])} {self._end(ends)}",
            "regex": lambda f, ends: f"{self._put(make.regex(f['pattern']))} {self._end(ends)}",
            "grammar": lambda f, ends: (
                f"{self._put(make.context_free(f['grammar']))} {self._end(ends)}"
            ),
            "any_text": lambda f, ends: self._free_text(ends),
            "sequence": lambda f, ends: self._sequence(f["elements"], ends),
            "or": self._or,
            "tag": lambda f, ends: f"{_quoted(f['begin'])} {self._rest_of_tag(f, ends)}",
            "triggered_tags": self._triggered,
        }

    def text(self, start: str) -> str:
        """Return the whole grammar."""
        lark = "\n".join(["%llguidance {}", f"start: {start}", *self._rules, ""])
        found = lark
        if self._beside:
            found = json.dumps({"grammars": [{"lark_grammar": lark}, *self._beside]})
        if len(found) > TEXT_CHARS:
            raise GrammarError(f"it has {len(found)} characters; at most {TEXT_CHARS} are served")
        return found

    def written(self, value: Any, ends: Ends) -> str:
        """Return the expression of a format and of what ends it."""
        return self._of[_checked(value)](value, ends)

    def _rule(self, body: str, *, options: str = "") -> str:
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _put(self, grammar: str) -> str:
        """Put a grammar beside this one, and return its name."""
        name = f"part_{len(self._beside)}"
        of_llguidance = grammar.lstrip().startswith("{")
        body = json.loads(grammar)["grammars"][0] if of_llguidance else {"lark_grammar": grammar}
        self._beside.append({**body, "name": name})
        return f"@{name}"

    def _end(self, ends: Ends) -> str:
        return f"({' | '.join(map(_quoted, ends))})" if ends else ""

    def _free_text(self, ends: Ends) -> str:
        if ends is None:
            return TEXT
        if not ends:
            raise GrammarError(
                "any_text and triggered_tags must be the last format of the answer, or have a text "
                "behind them: the end of a tag, a const_string or the begin of a tag"
            )
        return self._rule(f"{TEXT} {self._end(ends)}", options="[lazy]")

    def _sequence(self, elements: Sequence[Any], ends: Ends) -> str:
        """Each element ends with the text with which the next one begins, if it begins with one."""
        parts, begun = [], False
        for element, after in zip(elements, [*elements[1:], None], strict=True):
            kind = _checked(element)
            follows = ends if after is None else _begins(after)
            if not begun:
                parts.append(self.written(element, follows))
            elif kind == "tag":
                parts.append(self._rest_of_tag(element, follows))
            else:
                parts.append(self._end(follows))
            begun = after is not None and bool(follows)
        return f"({' '.join(parts)})" if parts else self._end(ends)

    def _or(self, said: Format, ends: Ends) -> str:
        if not said["elements"]:
            raise GrammarError("or: there are no elements; give at least one")
        each = [self._rule(self.written(element, ends)) for element in said["elements"]]
        return f"({' | '.join(each)})"

    def _rest_of_tag(self, said: Format, ends: Ends) -> str:
        """Return the expression of a tag without its begin."""
        own = said["end"] if isinstance(said["end"], list) else [said["end"]]
        if own == [""]:
            return self.written(said["content"], ends)
        if not own or not all(isinstance(end, str) and end for end in own):
            raise GrammarError("tag: `end` must be a text, or a list of texts that are not empty")
        return f"{self.written(said['content'], tuple(own))} {self._end(ends)}"

    def _triggered(self, said: Format, ends: Ends) -> str:
        tags, triggers = said["tags"], said["triggers"]
        if not tags or not all(_checked(tag) == "tag" for tag in tags):
            raise GrammarError("triggered_tags: `tags` must be a list of tags, at least one")
        if not all(isinstance(t, str) and t for t in triggers):
            raise GrammarError("a trigger must be a text of at least one character")
        must, once = (said.get(switch, False) is True for switch in SWITCHES)
        first = f"({' | '.join(self._rule(self.written(tag, ())) for tag in tags)})"
        if must and once:
            return f"{first} {self._end(ends)}"
        later = f"({' | '.join(self._behind_trigger(tag, triggers) for tag in tags)})"
        text = self._free_text(ends)
        if once:
            return f"({later} {self._end(ends)} | {text})"
        return f"{first if must else ''} {later}* {text}"

    def _behind_trigger(self, tag: Format, triggers: Sequence[str]) -> str:
        trigger = next((t for t in triggers if tag["begin"].startswith(t)), None)
        if trigger is None:
            raise GrammarError(f"the tag {tag['begin'][:80]!r} begins with none of the triggers")
        begun = self._rule(f"{TEXT} {_quoted(trigger)}", options="[lazy]")
        rest = tag["begin"][len(trigger) :]
        return self._rule(f"{begun} {_quoted(rest)} {self._rest_of_tag(tag, ())}")


def _checked(value: Any) -> str:
    """Return the kind of a format, all of whose fields are served."""
    name = value.get("type") if isinstance(value, Mapping) else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if not isinstance(name, str) or kind is None:
        raise GrammarError(
            f"the format {str(name)[:40]!r} is not served; there are {', '.join(KINDS)}"
        )
    for field, types in kind.needs.items():
        if not isinstance(value.get(field), types):
            raise GrammarError(
                f"{name}: `{field}` must be of the type {' or '.join(TYPES[t] for t in types)}"
            )
    switches = SWITCHES if name == "triggered_tags" else ()
    for field, said in value.items():
        known = field == "type" or field in kind.needs or field in switches
        if not known and (field not in kind.neutral or said != kind.neutral[field]):
            raise GrammarError(f"{name}: the field {field[:40]!r} is not served")
    return name


def _begins(value: Any) -> Ends:
    """The text with which a format begins; () if that is not one text."""
    kind = _checked(value)
    said = value["value"] if kind == "const_string" else value["begin"] if kind == "tag" else ""
    return (said,) if said else ()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _schema(schema: Any) -> str:
    return f"%json {json.dumps(json.loads(make.json_schema(schema))['grammars'][0]['json_schema'])}"
