"""Compares what lm-eval finds through a running service with what it finds in `transformers`, on
questions with four answers each: the log-likelihood of every answer, and which answers it takes.

    baton serve --dtype float32 --port 8000
    python tools/lm_eval_check.py http://127.0.0.1:8000 ~/.cache/baton/models/smollm2-135m-instruct

`lm_eval` (with its extras `api` and `hf`) is the command of an environment of its own, or the one
that `--lm-eval` names. The model's folder must have the weights that are served. `transformers`
computes in float32, whatever is served. Exits with 1 if a log-likelihood differs by more than
`--most`.

An accuracy has a standard error of its own; but both sides answer the same questions, so what counts
is on how many of them only one side is right.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from plain_questions import Question, questions

NAME = "plain_questions"
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


def write_task(directory: Path, asked: list[Question]) -> None:
    """Write the task and its questions."""
    data = directory / "questions.jsonl"
    rows = [{"question": q.text, "choices": list(q.options), "answer": q.right} for q in asked]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / f"{NAME}.yaml").write_text(TASK.format(name=NAME, data=data))


def evaluate(command: str, directory: Path, out: str, model: str, arguments: str) -> list[Sample]:
    """Run lm-eval with one of its models. Returns its samples in the order of the questions.

    Exits with what lm-eval said if it fails.
    """
    told = ["--tasks", NAME, "--include_path", str(directory), "--log_samples", "--device", "cpu"]
    where = directory / out
    ran = subprocess.run(
        [command, "--model", model, "--model_args", arguments, *told, "--output_path", str(where)],
        check=False,
        capture_output=True,
        text=True,
    )
    if ran.returncode != 0:
        sys.exit(f"lm-eval with {model} ended with {ran.returncode}:\n{ran.stderr[-2000:]}")
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
    gaps = sorted(abs(float(a[0]) - float(b[0])) for a, b in pairs)
    greedy = sum(str(a[1]) != str(b[1]) for a, b in pairs)
    print(f"{len(pairs)} answers to {len(ours)} questions")
    print(f"difference of log-likelihoods: median {gaps[len(gaps) // 2]:.2g}, most {gaps[-1]:.2g}")
    print(f"{greedy} of them are greedy for one side only")
    for where, samples in (("through the service", ours), ("in transformers", theirs)):
        print(f"right {where}: {share(samples)}")
    apart = [bool(a["acc"]) - bool(b["acc"]) for a, b in zip(ours, theirs, strict=True)]
    print(f"right on one side only: {apart.count(1)} for the service, {apart.count(-1)} for others")
    return gaps[-1]


def share(samples: list[Sample]) -> str:
    """The share of right answers, with its standard error."""
    right = sum(bool(sample["acc"]) for sample in samples)
    p = right / len(samples)
    error = math.sqrt(p * (1 - p) / len(samples))
    return f"{right} ({100 * p:.1f} % +- {100 * error:.1f} %)"


def main() -> int:
    """Return the exit status."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    options.add_argument("url", help="of the service")
    options.add_argument("model", type=Path, help="folder of the weights that are served")
    options.add_argument("--served", default="smollm2", help="name by which the service knows them")
    options.add_argument("--lm-eval", default="lm_eval", help="the command")
    options.add_argument("--questions", type=int, default=200)
    options.add_argument("--seed", type=int, default=0, help="of the questions")
    options.add_argument("--most", type=float, default=1e-3, help="difference of log-likelihoods")
    told = options.parse_args()
    service = (
        f"model={told.served},base_url={told.url}/v1/completions,num_concurrent=4,"
        f"tokenizer_backend=huggingface,tokenizer={told.model}"
    )
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_task(directory, questions(told.seed, told.questions))
        ours = evaluate(told.lm_eval, directory, "ours", "local-completions", service)
        local = f"pretrained={told.model},dtype=float32"
        theirs = evaluate(told.lm_eval, directory, "theirs", "hf", local)
    return int(compare(ours, theirs) > told.most)


if __name__ == "__main__":
    sys.exit(main())
