"""Makes golden/trial.json: what `transformers` generates greedily in float32, and how near each
choice was to a tie.

python -m tests.e2e.make_golden
"""

import json
from pathlib import Path

import torch
from tests.e2e.prompts import prompts
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from baton.engine.trial import default_directory

GOLDEN = Path(__file__).parent / "golden" / "trial.json"
TOKENS = 24


def make() -> list[dict[str, list]]:
    """For each prompt: its ids, the tokens, and the margin between the two largest logits at each
    of them."""
    directory = default_directory()
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    found = []
    for ids in prompts(lambda text: tokenizer.encode(text, add_special_tokens=False).ids):
        answer = model.generate(
            torch.tensor([ids]),
            # else <|im_end|>, its padding, would be masked
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tops = [logits[0].float().topk(2).values for logits in answer.logits]
        found.append(
            {
                "prompt": ids,
                "tokens": answer.sequences[0, len(ids) :].tolist(),
                "margins": [round(float(t[0] - t[1]), 6) for t in tops],
            }
        )
    return found


if __name__ == "__main__":
    torch.set_num_threads(2)
    made = make()
    GOLDEN.write_text(json.dumps(made, separators=(",", ":")) + "\n")
    print(len(made), "prompts,", sum(len(m["prompt"]) for m in made), "prompt tokens")
