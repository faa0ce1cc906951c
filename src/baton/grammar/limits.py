"""How much work a grammar may make, of which the client is the author.

llguidance counts work, not time, so the same grammar is refused on a fast and on a slow machine.
With these limits a grammar takes up to about 0.5 s to build and 30 ms for a mask on one core of an
AMD EPYC; grammars that people use take a hundredth of that.
"""

from llguidance import LLParserLimits

TEXT_CHARS = 128 * 1024  # of a grammar, as llguidance gets it
NESTING = 64  # of objects and lists in a JSON schema
CHOICES = 4096  # of `choice`
REPEATED = 100_000  # characters of a regular expression when its repetitions are written out
LARK_WORDS = 5_000  # of a grammar in Lark's notation or in GBNF
# Rules times words of a grammar in GBNF: llguidance goes through all rules as often as there are
# rules.
GBNF_WORK = 700_000
# What llguidance compares or combines each with each, of one schema.
PATTERN_PROPERTIES = 64
PATTERNS = 1_000
NAMES = 2_000  # different ones, of properties
MULTIPLES = 90_000  # of which all multipleOf, without their decimal point, are divisors
COUNTED = 200  # of a schema that says minProperties or maxProperties
# Schemas that llguidance builds, combines and copies for one text (combining.py). A copy takes up
# to 0.3 us and 330 bytes, a step ten times as long.
STEPS = 25_000
COPIED = 500_000


def limits() -> LLParserLimits:
    """Return the limits under which every grammar is built and followed."""
    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=10_000,  # up to 2 KiB each
        max_grammar_size=40_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )
