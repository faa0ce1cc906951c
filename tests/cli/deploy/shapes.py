"""Services of four shapes, as the command line that prints them."""

from typing import Any

import yaml

SHAPES = {
    "one and one": ["meta/llama"],
    "two and four with tp 2": [
        "/models/llama",
        "--model-claim=weights",
        "--prefill=2",
        "--decode=4",
        "--tp=2",
        "--gateways=2",
        "--max-prefill=4",
        "--max-decode=8",
        "--namespace=serving",
        "--name=llama",
        "--port=80",
        "--api-key-secret=clients",
        "--gpus=1",
    ],
    "a worker of two nodes": [
        "meta/llama",
        "--decode-tp=4",
        "--decode-nodes=2",
        "--max-decode=3",
        "--hub-token-secret=hub",
        "--env=BATON_KV_MEMORY=4GiB",
    ],
    "vllm": ["meta/llama", "--engine=vllm", "--image=vllm-baton", "--decode=2"],
}


def documents(text: str) -> list[dict[str, Any]]:
    """The manifests of a YAML stream."""
    return [each for each in yaml.safe_load_all(text) if each is not None]


def pod_templates(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The templates of a manifest's pods, if it has some; a leader's first."""
    spec = manifest["spec"]
    group = spec.get("leaderWorkerTemplate", {})
    found = [spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate")]
    return [each for each in found if isinstance(each, dict)]
