"""Answers drawn at random from a grammar, over the bytes, and what `jsonschema` says of them."""

import decimal
import json
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonschema
import numpy as np
from jsonschema.validators import validator_for
from tests.gateway.models import byte_vocabulary

from baton.core.ids import TokenId
from baton.core.messages import Grammar
from baton.gateway.tokenizer import BYTE_ALPHABET
from baton.grammar.matcher import LlguidanceMatcher
from baton.grammar.vocabulary import Vocabulary

END = TokenId(257)
SIZE = 300  # more than the vocabulary has, as models are padded
CLOSING = tuple(b'}]"')
HURRY = 600  # tokens, after which the walk takes what closes


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(byte_vocabulary().to_str, size=SIZE)


@cache
def texts() -> list[bytes]:
    """By token: its bytes."""
    found = byte_vocabulary()
    return [
        bytes(BYTE_ALPHABET.get(c, 0) for c in found.id_to_token(i))
        for i in range(found.get_vocab_size())
    ]


def grammar(text: str) -> Grammar:
    return Grammar(text, (), (END,))


def drawn(text: str, seed: int, most: int = 1500) -> str | None:
    """An answer drawn at random, which ends the sooner the longer it is; None if it does not."""
    matcher, rng = LlguidanceMatcher(grammar(text), vocabulary()), random.Random(seed)
    answer: list[int] = []
    while len(answer) < most:
        token = _next(np.flatnonzero(matcher.allowed()).tolist(), len(answer), rng)
        if token == END:
            return b"".join(texts()[t] for t in answer).decode()
        matcher.accept([TokenId(token)])
        answer.append(token)
    return None


def _next(allowed: list[int], length: int, rng: random.Random) -> int:
    hurry = min(0.97, 0.25 + length / HURRY)
    if END in allowed and (len(allowed) == 1 or rng.random() < max(hurry, 0.5)):
        return END
    closing = [t for t in CLOSING if t in allowed]
    if closing and rng.random() < hurry:
        return closing[0] if rng.random() < 0.5 else rng.choice(closing)
    white = (ord(" "), ord("\n"), ord("\t"), END)
    plain = [t for t in allowed if t not in white] or allowed
    ascii_only = [t for t in plain if t < 128] if rng.random() < 0.9 else plain
    return rng.choice(ascii_only or plain)


def wrong(schema: Mapping[str, Any] | bool, answer: str) -> str | None:
    """What is wrong with an answer by its schema's draft, with formats; None if nothing is."""
    with decimal.localcontext() as context:
        # 0.3 is a multiple of 0.1, and 1e999 a number
        context.Emax, context.Emin, context.prec = decimal.MAX_EMAX, decimal.MIN_EMIN, 400
        exact = json.loads(json.dumps(schema), parse_float=_number)
        kind = validator_for(schema, default=jsonschema.Draft202012Validator)
        judge = kind(exact, format_checker=kind.FORMAT_CHECKER)
        found = next(judge.iter_errors(json.loads(answer, parse_float=_number)), None)
    return None if found is None else found.message


def _number(text: str) -> decimal.Decimal | float:
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        return float(text)
