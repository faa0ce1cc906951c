"""32 varied prompts, about 8,000 tokens in all, one of 3,000: made, not stored."""

STORY = (
    "The relay began at dawn. The first runner held the baton lightly, as her coach had "
    "taught her, and thought of nothing "
    "but the next ten metres. Behind the stand somebody counted: {n}. "
)
SHORT = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "1, 2, 3, 5, 8, 13, 21,",
    "Größe, Maß und Übermut: ½ und ¾ sind",
    "東京は日本の",
    "🙂🙃 emoji and ☃ snow; \u200d joiners",
    "SELECT name, count(*) FROM orders GROUP BY",
    "Dear Sir or Madam,\n\nI am writing to",
    "A",
    " \n\n\t",
    "In 1969, 384400 km away,",
    "Q: What is 12 * 12?\nA:",
    "Привет, мир! Как",
    '{"name": "baton", "kind":',
    "To be, or not to be, that is the question:",
    "مرحبا بالعالم",
]


def chat(*turns: str) -> str:
    """Turns in the trial model's format, the next one the assistant's."""
    roles = ("user", "assistant")
    said = "".join(f"<|im_start|>{roles[i % 2]}\n{t}<|im_end|>\n" for i, t in enumerate(turns))
    return f"{said}<|im_start|>assistant\n"


def texts() -> list[str]:
    """All prompts, shorter than their token limits in `LIMITS`."""
    chats = [
        chat("What is a relay race?"),
        chat("Name three colours.", "Red, green and blue.", "And three more?"),
        chat("Write a haiku about rain."),
        chat(
            "Hi",
            "Hello! How can I help?",
            "Tell me about Mars.",
            "Mars is the fourth planet.",
            "How far is it?",
        ),
    ]
    long = ["".join(STORY.format(n=f"{k}-{i}") for i in range(90)) for k in range(12)]
    return SHORT + chats + long


# Tokens kept of the long prompts: odd lengths, block borders and their neighbours, one of 3,000.
LIMITS = [15, 16, 17, 31, 33, 127, 255, 256, 513, 900, 2521, 3000]


def prompts(encode: "object") -> list[list[int]]:
    """Token ids of all 32; `encode` turns text into ids."""
    ids = [encode(t) for t in texts()]  # type: ignore[operator]
    head, long = ids[: -len(LIMITS)], ids[-len(LIMITS) :]
    return head + [x[:n] for x, n in zip(long, LIMITS, strict=True)]
