"""Multiple-choice questions drawn from plain rules: the same seed gives the same ones, and nothing is
fetched."""

import random
from collections.abc import Callable
from typing import NamedTuple

OPTIONS = 4
WORDS = (
    *("apple", "bread", "chair", "dance", "eagle", "field", "grass", "house", "island", "jacket"),
    *("kitchen", "lemon", "mirror", "night", "ocean", "paper", "queen", "river", "silver", "table"),
    *("uncle", "village", "water", "yellow", "zebra", "bridge", "candle", "doctor", "engine"),
)
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COLOURS = ("red", "blue", "green", "white", "black")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Question(NamedTuple):
    """A question, its options, and the index of the right one."""

    text: str
    options: tuple[str, ...]
    right: int


Drawn = tuple[str, str, list[str]]  # question, right answer, others


def questions(seed: int, count: int) -> list[Question]:
    """Draw questions, of all kinds in turn; none comes twice."""
    rng = random.Random(seed)
    found: dict[str, Question] = {}
    while len(found) < count:
        text, right, others = KINDS[len(found) % len(KINDS)](rng)
        options = [right, *rng.sample([o for o in others if o != right], OPTIONS - 1)]
        rng.shuffle(options)
        found.setdefault(text, Question(text, tuple(options), options.index(right)))
    return list(found.values())


def _sum(rng: random.Random) -> Drawn:
    a, b = rng.randint(1, 20), rng.randint(1, 20)
    near = [str(a + b + d) for d in (-10, -2, -1, 1, 2, 10) if a + b + d > 0]
    return f"What is {a} plus {b}?", str(a + b), near


def _next_number(rng: random.Random) -> Drawn:
    start, step = rng.randint(1, 30), rng.randint(1, 5)
    shown = ", ".join(str(start + i * step) for i in range(4))
    right = start + 4 * step
    return (
        f"Which number comes next: {shown}?",
        str(right),
        [str(right + d) for d in (-2, -1, 1, 2, 3)],
    )


def _larger(rng: random.Random) -> Drawn:
    numbers = rng.sample(range(1, 100), OPTIONS)
    shown = ", ".join(map(str, numbers))
    return (
        f"Which of these numbers is the largest: {shown}?",
        str(max(numbers)),
        [str(n) for n in numbers],
    )


def _upper_case(rng: random.Random) -> Drawn:
    word = rng.choice(WORDS)
    others = [word, word.capitalize(), word[:-1].upper() + word[-1], word.upper()[:-1]]
    return f'How is the word "{word}" written in capital letters?', word.upper(), others


def _first_letter(rng: random.Random) -> Drawn:
    word = rng.choice(WORDS)
    return f'What is the first letter of the word "{word}"?', word[0], list(LETTERS)


def _last_word(rng: random.Random) -> Drawn:
    words = rng.sample(WORDS, OPTIONS)
    return f'What is the last word of the list "{" ".join(words)}"?', words[-1], words


def _second_word(rng: random.Random) -> Drawn:
    words = rng.sample(WORDS, OPTIONS)
    return f'What is the second word of the list "{" ".join(words)}"?', words[1], words


def _alphabet(rng: random.Random) -> Drawn:
    words = rng.sample(WORDS, OPTIONS)
    return f"Which word comes first in a dictionary: {', '.join(words)}?", min(words), words


def _count(rng: random.Random) -> Drawn:
    word, count = rng.choice(WORDS), rng.randint(2, 6)
    said = " ".join([word] * count)
    return f'How many words are in "{said}"?', NUMBERS[count - 1], list(NUMBERS)


def _day(rng: random.Random) -> Drawn:
    at, days = rng.randrange(7), rng.randint(2, 4)
    right = DAYS[(at + days) % 7]
    return f"Which day is it {NUMBERS[days - 1]} days after {DAYS[at]}?", right, list(DAYS)


def _colour(rng: random.Random) -> Drawn:
    things, colours = rng.sample(WORDS, 3), rng.sample(COLOURS, 3)
    at = rng.randrange(3)
    said = " ".join(f"The {t} is {c}." for t, c in zip(things, colours, strict=True))
    return f"{said} Which colour has the {things[at]}?", colours[at], list(COLOURS)


KINDS: tuple[Callable[[random.Random], Drawn], ...] = (
    *(_sum, _next_number, _larger, _upper_case, _first_letter, _last_word, _second_word),
    *(_alphabet, _count, _day, _colour),
)
