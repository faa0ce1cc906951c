r"""Regular expressions, as llguidance must get them.

A `pattern` of JSON Schema is written in the dialect of ECMA-262, and llguidance reads that of Rust:
there `[`, `&&`, `--` and `~~` have a meaning inside of a class. And where a class has all control
characters, llguidance 1.9 lets a quote and a backslash through even if the class excludes them, as
`[^"]` does. So no class keeps NUL, which an answer cannot contain anyway (ESCAPES in request.py).
"""

import re

from baton.core.matchers import GrammarError
from baton.grammar.limits import REPEATED

PIECE = re.compile(
    r"""(?P<property>\\[pP](?:\{[^}]*\}|.))   # \p{L}
      | \\.                                   # any other escape
      | (?P<group>\()
      | (?P<close>\))
      | (?P<any>\[\^\])                       # ECMA's [^] and []
      | (?P<none>\[\])
      | \[(?P<not>\^?)(?P<inside>(?:\\.|[^\]\\])*)\]
      | \{(?P<least>[0-9]+)(?:,(?P<most>[0-9]*))?\}
      | .""",
    re.DOTALL | re.VERBOSE,
)
# what may bring all control characters into a class that is not negated
RANGES = re.compile(r"\\[pPxu0]|\0")
IN_CLASS = re.compile(r"(?P<kept>\\.|\^)|(?P<last>-$)|(?P<second>(?<=-)-)|[\[&~]", re.DOTALL)
NOT_NUL = r"&&[^\x00]"


def of_schema(pattern: str) -> str:
    """Return a pattern of JSON Schema in Rust's dialect.

    Raises:
        GrammarError: its repetitions make it too long
    """
    check_length(pattern)
    return PIECE.sub(_translated, pattern)


def _translated(piece: re.Match[str]) -> str:
    if piece["property"]:
        return f"[{piece[0]}{NOT_NUL}]"
    if piece["any"]:
        return "(?s:.)"
    if piece["none"]:
        return r"[^\s\S]"
    if piece["inside"] is None:
        return piece[0]
    inside = IN_CLASS.sub(lambda found: found["kept"] or "\\" + found[0], piece["inside"])
    if piece["not"]:
        return rf"[^\x00{inside}]"
    return f"[{inside}{NOT_NUL}]" if RANGES.search(piece["inside"]) else f"[{inside}]"


def check_length(pattern: str) -> None:
    """Check that a regular expression is not too long when its repetitions are written out.

    Raises:
        GrammarError: it is
    """
    groups, last = [0], 0  # how long each open group is, and what stands before a repetition
    for piece in PIECE.finditer(pattern):
        if piece["group"]:
            groups.append(0)
            last = 0
        elif piece["close"] and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif piece["least"]:
            times = max(int(piece["least"]), int(piece["most"] or 0), 1)
            groups[-1] += last * (times - 1)
            last *= times
        else:
            last = 1
            groups[-1] += 1
    if (length := sum(groups)) > REPEATED:
        raise GrammarError(
            f"the regular expression {pattern[:40]!r} is {length} characters long when its "
            f"repetitions are written out; at most {REPEATED} are served"
        )
