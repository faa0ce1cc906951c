"""Compares what lm-eval finds through a running service with what it finds in `transformers`, on a
small multiple-choice task: the log-likelihood of every answer, and which answers it takes.

    baton serve --dtype float32
    python tools/lm_eval_check.py http://127.0.0.1:8000 ~/.cache/baton/models/smollm2-135m-instruct

`lm_eval` (with its extra `api`) is the command of an environment of its own, or the one that
`--lm-eval` names. The model's folder must have the weights that are served, in the same dtype.
Exits with 1 if a log-likelihood differs by more than 0.001.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NAME, MOST = "relay_questions", 1e-3
QUESTIONS = (
    ("What is the capital of France?", ("Paris", "Rome", "Berlin", "Madrid"), 0),
    ("Which planet is known as the red planet?", ("Venus", "Mars", "Jupiter", "Saturn"), 1),
    ("How many legs does a spider have?", ("four", "six", "eight", "ten"), 2),
    ("Which of these is a fruit?", ("carrot", "potato", "onion", "apple"), 3),
    ("What do bees make?", ("honey", "milk", "wool", "silk"), 0),
    ("Which gas do plants take in?", ("oxygen", "carbon dioxide", "helium", "neon"), 1),
    ("What is frozen water called?", ("steam", "dew", "ice", "fog"), 2),
    ("Which animal barks?", ("cat", "cow", "horse", "dog"), 3),
    ("What colour is the sky on a clear day?", ("blue", "green", "black", "pink"), 0),
    ("What is two plus two?", ("three", "four", "five", "six"), 1),
    ("Which ocean lies west of Europe?", ("Pacific", "Indian", "Atlantic", "Arctic"), 2),
    ("Who wrote Romeo and Juliet?", ("Dickens", "Austen", "Twain", "Shakespeare"), 3),
)
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""
Sample = dict[str, Any]


def write_task(directory: Path) -> None:
    """Write the task and its questions."""
    data = directory / "questions.jsonl"
    rows = [{"question": q, "choices": list(c), "answer": a} for q, c, a in QUESTIONS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / f"{NAME}.yaml").write_text(TASK.format(name=NAME, data=data))


def evaluate(command: str, directory: Path, out: str, model: str, arguments: str) -> list[Sample]:
    """Run lm-eval with one of its models. Returns its samples in the order of the questions."""
    told = ["--tasks", NAME, "--include_path", str(directory), "--log_samples", "--device", "cpu"]
    where = directory / out
    subprocess.run(
        [command, "--model", model, "--model_args", arguments, *told, "--output_path", str(where)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (found,) = where.glob("**/samples_*.jsonl")
    samples: list[Sample] = [json.loads(line) for line in found.read_text().splitlines()]
    return sorted(samples, key=lambda sample: int(sample["doc_id"]))


def compare(ours: list[Sample], theirs: list[Sample]) -> float:
    """Print what differs. Returns the largest difference of a log-likelihood."""
    pairs = [
        (a, b)
        for mine, other in zip(ours, theirs, strict=True)
        for a, b in zip(mine["filtered_resps"], other["filtered_resps"], strict=True)
    ]
    worst = max(abs(float(a[0]) - float(b[0])) for a, b in pairs)
    greedy = sum(str(a[1]) != str(b[1]) for a, b in pairs)
    right = [sum(sample["acc"] for sample in samples) for samples in (ours, theirs)]
    print(f"{len(pairs)} answers; largest difference of a log-likelihood {worst:.2g}")
    print(f"{greedy} of them are greedy for one side only")
    print(f"right answers: {right[0]:.0f} through the service, {right[1]:.0f} in transformers")
    return worst


def main() -> int:
    """Return the exit status."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    options.add_argument("url", help="of the service")
    options.add_argument("model", type=Path, help="folder of the weights that are served")
    options.add_argument("--served", default="smollm2", help="name by which the service knows them")
    options.add_argument("--lm-eval", default="lm_eval", help="the command")
    told = options.parse_args()
    service = (
        f"model={told.served},base_url={told.url}/v1/completions,num_concurrent=4,"
        f"tokenizer_backend=huggingface,tokenizer={told.model}"
    )
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_task(directory)
        ours = evaluate(told.lm_eval, directory, "ours", "local-completions", service)
        local = f"pretrained={told.model},dtype=float32"
        theirs = evaluate(told.lm_eval, directory, "theirs", "hf", local)
    return int(compare(ours, theirs) > MOST)


if __name__ == "__main__":
    sys.exit(main())
