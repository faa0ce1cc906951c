"""Damaged files of a model, and damaged grammars: each is loaded, or refused with an error of ours.

They are loaded in children, because a library that is not Python may end the whole process.
"""

import json
import multiprocessing
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tests.engine.test_gguf import write
from tests.fuzz.mutate import Mutator
from tests.fuzz.report import Report, resident_mib
from tests.tiny import CHAT_TEMPLATE, END, VOCABULARY, make_tiny

from baton.core.errors import ConfigError
from baton.core.matchers import GrammarError
from baton.core.memory.state import DType, Placement
from baton.core.messages import Grammar
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Alone
from baton.engine.cpu_ops import CpuOps
from baton.engine.gguf import read_header, require_faithful
from baton.engine.kernels.team import Team
from baton.engine.models import FAMILIES
from baton.engine.models.base import family_of
from baton.gateway import generation_config
from baton.gateway.faults import HttpFault
from baton.gateway.schema import CompletionBody
from baton.gateway.structured import MAKERS, wanted
from baton.gateway.template import ChatTemplate, TemplateRefused
from baton.gateway.tokenizer import Tokenizer
from baton.grammar.check import check
from baton.grammar.vocabulary import Vocabulary

REFUSALS = (ConfigError, GrammarError, TemplateRefused, ValidationError, HttpFault)
BATCH = 200
TEMPLATE = CHAT_TEMPLATE.encode()
HANG_S = 60  # of one input; half a second is the work that a grammar may make
GROWTH_MIB = 256.0
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"$ref": "#/$defs/x"}, "maxItems": 3},
        "b": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^a[b-d]+$"}]},
        "c": {"type": "number", "minimum": -5, "maximum": 1e3},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"x": {"enum": ["u", 1, None]}},
}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f>"],
}
GRAMMARS: tuple[dict[str, Any], ...] = (
    {"json": SCHEMA},
    {"regex": "(a|b{2,5}|[^c-f])*x?\\d+"},
    {"choice": ["yes", "no", "perhaps"]},
    {"grammar": 'root ::= "a" b* | [x-z]{2,3}\nb ::= "c" root?'},
    {"grammar": 'start: "a" b+\nb: /[c-e]{1,4}/ | "(" start ")"'},
    {"structural_tag": TAG},
    {"json_object": True},
)
Load = Callable[[bytes], object]


def load_model(directory: Path) -> None:
    """What a worker does with config.json and the weights."""
    checkpoint = Checkpoint.open(directory)
    family = family_of(checkpoint.config, FAMILIES)
    family.require_width(checkpoint.config, 1)
    table = family.table(checkpoint.config, block_tokens=16, dtype=DType.F32)
    longest = family.longest(checkpoint.config)
    placement = Placement(table, 1, 1, 0, 0, 1)
    family.build(checkpoint, placement, DType.F32, CpuOps(DType.F32, Team(1)), Alone(), longest=128)
    family.read(checkpoint.config, longest=128)
    checkpoint.identity("float32")
    assert longest


def load_tokenizer(directory: Path) -> None:
    """What a gateway does with the other files."""
    generation = generation_config.load(directory, source="auto", override=None)
    tokenizer = Tokenizer.load(directory, eos_ids=generation.eos_ids)
    tokens = tokenizer.encode("hello <|im_start|> \u00e9\U0001f600")
    tokenizer.decode(tokens)
    vocabulary = Vocabulary(tokenizer.to_json, size=tokenizer.vocab_size)
    if tokenizer.eos_ids:
        vocabulary.ending_with(tokenizer.eos_ids)
    ChatTemplate(CHAT_TEMPLATE, {}).render(TALK)


def load_template(raw: bytes) -> None:
    """Compile a chat template and render a conversation."""
    text = raw.decode(errors="replace")
    template = ChatTemplate(text, {"bos_token": "<s>"}, today=lambda: datetime(2026, 1, 1))
    template.render(TALK, add_generation_prompt=True)
    template.render(TALK, continue_final_message=True)


def load_gguf(file: Path) -> None:
    """Read a header, as before a conversion."""
    require_faithful(file, read_header(file), own_tokenizer=False)


def load_grammar(vocabulary: Vocabulary, raw: bytes) -> None:
    """Make and check a grammar, as a gateway does."""
    fields = {"prompt": "a", "structured_outputs": json.loads(raw)}
    found = wanted(CompletionBody.model_validate_json(json.dumps(fields)))
    if found is not None:
        check(Grammar(MAKERS[found.kind](found), (), (END,)), vocabulary)


class Kind:
    """One kind of input."""

    def __init__(self, good: list[bytes], load: Load, *, is_json: bool = False) -> None:
        self.good, self._load, self._is_json = good, load, is_json

    def draw(self, mutator: Mutator, number: int) -> bytes:
        """A damaged one. Every other one of JSON is JSON still."""
        if self._is_json and number % 2:
            value = mutator.value(json.loads(self.good[number // 2 % len(self.good)]))
            return json.dumps(value).encode()
        return mutator.draw()

    def load(self, raw: bytes) -> None:
        """Load it."""
        self._load(raw)


def _in(directory: Path, name: str, load: Callable[[Path], None]) -> Load:
    """Load a directory in which one file is this one."""

    def with_file(raw: bytes) -> None:
        (directory / name).write_bytes(raw)
        load(directory)

    return with_file


def _is_bytes_of(model: Path, scratch: Path, name: str, load: Callable[[Path], None]) -> Kind:
    directory = scratch / name
    directory.mkdir()
    for file in model.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    good = (model / name).read_bytes() if (model / name).is_file() else TEMPLATE
    return Kind([good], _in(directory, name, load), is_json=name.endswith(".json"))


def _json_grammar(vocabulary: Vocabulary, raw: bytes) -> None:
    try:
        json.loads(raw)
    except (ValueError, RecursionError):  # no body has it: it is refused as JSON
        raise GrammarError("not JSON") from None
    load_grammar(vocabulary, raw)


def kinds_in(scratch: Path) -> Mapping[str, Kind]:
    """Everything that is loaded, with a right one of each."""
    model = make_tiny(scratch / "model", "qwen2")
    gguf = write(model, scratch / "good.gguf", "qwen2")
    tokenizer = Tokenizer.load(model)
    vocabulary = Vocabulary(tokenizer.to_json, size=VOCABULARY)
    vocabulary.ending_with((END,))
    damaged = scratch / "damaged.gguf"

    def load_one_gguf(raw: bytes) -> None:
        damaged.write_bytes(raw)
        load_gguf(damaged)

    files = {
        "config.json": load_model,
        "model.safetensors": load_model,
        "tokenizer.json": load_tokenizer,
        "tokenizer_config.json": load_tokenizer,
        "generation_config.json": load_tokenizer,
        "chat_template.jinja": load_tokenizer,
    }
    found = {name: _is_bytes_of(model, scratch, name, load) for name, load in files.items()}
    (scratch / "gateway").mkdir()
    return found | {
        "config.json of a gateway": _is_bytes_of(
            model, scratch / "gateway", "config.json", load_tokenizer
        ),
        "gguf": Kind([gguf.read_bytes()], load_one_gguf),
        "template": Kind([TEMPLATE], load_template),
        "grammar": Kind(
            [json.dumps(g).encode() for g in GRAMMARS],
            partial(_json_grammar, vocabulary),
            is_json=True,
        ),
    }


def fuzz(count: int, seed: int) -> Report:
    """So many inputs, of each kind in turn."""
    report = Report("loaders")
    with tempfile.TemporaryDirectory() as scratch:
        kinds = kinds_in(Path(scratch))
        for name, kind in kinds.items():
            for good in kind.good:
                kind.load(good)  # what is right is taken
            assert name
        fork = multiprocessing.get_context("fork")
        for begin in range(0, count, BATCH):
            ours, theirs = fork.Pipe(duplex=False)
            numbers = range(begin, min(count, begin + BATCH))
            child = fork.Process(target=_load_some, args=(kinds, numbers, seed, theirs))
            child.start()
            theirs.close()
            _hear(ours, report)
            child.join()
            if child.exitcode != 0:
                report.breaks(f"the process ended with {child.exitcode} in {numbers}")
    return report


def _hear(ours: Connection, report: Report) -> None:
    last = b""
    while True:
        try:
            what, name, raw, took = ours.recv()
        except EOFError:
            if last:
                report.breaks("the process ended, with this input", last)
            return
        last = raw if what == "begins" else b""
        if what == "begins":
            continue
        if what == "grown":
            most = report.growth_mib["at most, in half a batch"] = max(
                took, report.growth_mib.get("at most, in half a batch", 0.0)
            )
            if most > GROWTH_MIB:
                report.breaks(f"memory grew by {most:.0f} MiB", kind="memory")
            continue
        report.slowest_s = max(report.slowest_s, took)
        if what in ("loaded", "refused"):
            report.outcomes[f"{name} {what}"] += 1
        else:
            report.breaks(f"{name}: {what}", raw, kind=what.partition("\n")[2])


def _load_some(kinds: Mapping[str, Kind], numbers: range, seed: int, theirs: Connection) -> None:
    signal.signal(signal.SIGALRM, _hangs)
    mutators = {n: Mutator(k.good, seed * 1_000_003 + numbers.start) for n, k in kinds.items()}
    names, before = list(kinds), 0.0
    for number in numbers:
        name = names[number % len(names)]
        kind = kinds[name]
        raw = kind.draw(mutators[name], number // len(names))
        theirs.send(("begins", name, raw[:4000], 0.0))
        began = time.monotonic()
        signal.alarm(HANG_S)
        try:
            kind.load(raw)
            what = "loaded"
        except REFUSALS:
            what = "refused"
        except BaseException as error:  # noqa: BLE001 panics of Rust are no Exception
            where = "".join(traceback.format_tb(error.__traceback__)[-2:])
            what = f"{type(error).__name__}: {str(error)[:200]}\n{where}"
        signal.alarm(0)
        theirs.send((what, name, raw[:4000], time.monotonic() - began))
        if number == numbers.start + len(numbers) // 2:
            before = resident_mib()
    grown = resident_mib() - before
    theirs.send(("grown", "", b"", grown if before else 0.0))


def _hangs(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"not loaded within {HANG_S} s")
