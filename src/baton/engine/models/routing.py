"""Which experts a token goes to in DeepSeek's models, and with what weights (DeepSeek-AI 2024: DeepSeek-V2, -V3).

Experts may lie in groups; a token then goes to the best groups first, and to the best experts inside them.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from baton.core.errors import ConfigError
from baton.engine.models.config import count, number
from baton.engine.ops import sigmoid

Chosen = tuple[torch.Tensor, torch.Tensor]  # weights, float32 [rows, chosen], and the experts they are of, int64
TINY = 1e-20  # keeps a sum of weights from being zero


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """How experts are chosen.

    Attributes:
        experts, chosen: how many there are, and how many a token goes to
        groups, kept: of experts, and how many of them a token may go to
        normed: weights are divided by their sum
        factor: what they are multiplied by then
    """

    experts: int
    chosen: int
    groups: int
    kept: int
    normed: bool
    factor: float


def by_softmax(logits: torch.Tensor, r: Routing) -> Chosen:
    """DeepSeek-V2: a group is as good as its best expert. logits: float32 [rows, experts].

    Weights are either normed or multiplied by the factor, as in the published code.
    """
    weights, experts = _in_best_groups(logits.softmax(-1), r, counted=1).topk(r.chosen, -1)
    if r.normed and r.chosen > 1:
        return weights / (weights.sum(-1, keepdim=True) + TINY), experts
    return weights * r.factor, experts


def by_sigmoid(logits: torch.Tensor, bias: torch.Tensor, r: Routing) -> Chosen:
    """DeepSeek-V3: a group is as good as its two best experts. The bias [experts], which balances their load, decides on the
    choice and not on the weights. logits: float32 [rows, experts]."""
    scores = sigmoid(logits)
    experts = _in_best_groups(scores + bias, r, counted=2).topk(r.chosen, -1)[1]
    weights = scores.gather(1, experts)
    if r.normed:
        weights = weights / (weights.sum(-1, keepdim=True) + TINY)
    return weights * r.factor, experts


def _in_best_groups(scores: torch.Tensor, r: Routing, *, counted: int) -> torch.Tensor:
    """Scores, with -inf outside the groups that are kept: those whose best `counted` experts have the highest sum."""
    if r.kept == r.groups:
        return scores
    best = scores.view(-1, r.groups, r.experts // r.groups).topk(counted, -1)[0].sum(-1)
    out = torch.ones_like(best, dtype=torch.bool).scatter_(1, best.topk(r.kept, -1)[1], False)
    return scores.masked_fill(out.repeat_interleave(r.experts // r.groups, dim=1), float("-inf"))


def read_routing(c: Mapping[str, Any], *, grouped: bool, least: int) -> Routing:
    """The routing of a config that is complete. least: experts that a group must have.

    Raises:
        ConfigError: the numbers do not fit together
    """
    experts, chosen = count(c, "n_routed_experts"), count(c, "num_experts_per_tok")
    groups = count(c, "n_group") if grouped else 1
    kept = count(c, "topk_group") if grouped else 1
    if experts % groups or experts // groups < least:
        raise ConfigError(f"config.json: {experts} experts cannot lie in {groups} groups of equal size, at least {least} in each")
    if kept > groups or chosen > kept * (experts // groups):
        raise ConfigError(f"config.json: a token cannot go to {chosen} experts in {kept} of {groups} groups of {experts} experts")
    return Routing(
        experts=experts,
        chosen=chosen,
        groups=groups,
        kept=kept,
        normed=bool(c.get("norm_topk_prob")),
        factor=number(c, "routed_scaling_factor"),
    )
