"""Chooses the experts of a token, and their weights, in DeepSeek-V2 and -V3 (DeepSeek-AI 2024).

If experts are in groups, the best groups are chosen first, then the best experts in them.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from baton.core.errors import ConfigError
from baton.engine.models.config import count, number
from baton.engine.ops import sigmoid

# weights float32 [rows, chosen], experts int64 [rows, chosen]
Chosen = tuple[torch.Tensor, torch.Tensor]
TINY = 1e-20  # keeps a sum of weights from being zero


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """How experts are chosen.

    Attributes:
        experts, chosen: number of experts, and of those for each token
        groups, kept: number of groups of experts, and of those that a token may use
        normed: whether weights are divided by their sum
        factor: factor of the weights
    """

    experts: int
    chosen: int
    groups: int
    kept: int
    normed: bool
    factor: float


def by_softmax(logits: torch.Tensor, r: Routing) -> Chosen:
    """Choose as in DeepSeek-V2: a group's score is that of its best expert.

    Weights are either normalised or multiplied by the factor, as in the published code.
    logits: float32 [rows, experts].
    """
    weights, experts = _in_best_groups(logits.softmax(-1), r, counted=1).topk(r.chosen, -1)
    if r.normed and r.chosen > 1:
        return weights / (weights.sum(-1, keepdim=True) + TINY), experts
    return weights * r.factor, experts


def by_sigmoid(logits: torch.Tensor, bias: torch.Tensor, r: Routing) -> Chosen:
    """Choose as in DeepSeek-V3: a group's score is the sum of its two best experts.

    The bias [experts], which balances load, affects the choice but not the weights.
    logits: float32 [rows, experts].
    """
    scores = sigmoid(logits)
    experts = _in_best_groups(scores + bias, r, counted=2).topk(r.chosen, -1)[1]
    weights = scores.gather(1, experts)
    if r.normed:
        weights = weights / (weights.sum(-1, keepdim=True) + TINY)
    return weights * r.factor, experts


def _in_best_groups(scores: torch.Tensor, r: Routing, *, counted: int) -> torch.Tensor:
    """Set scores to -inf outside the groups whose best `counted` experts have the highest sums."""
    if r.kept == r.groups:
        return scores
    best = scores.view(-1, r.groups, r.experts // r.groups).topk(counted, -1)[0].sum(-1)
    out = torch.ones_like(best, dtype=torch.bool).scatter_(1, best.topk(r.kept, -1)[1], False)
    return scores.masked_fill(out.repeat_interleave(r.experts // r.groups, dim=1), float("-inf"))


def read_routing(c: Mapping[str, Any], *, grouped: bool, least: int) -> Routing:
    """Read the routing of a complete config.

    Args:
        c: the config
        grouped: whether experts are in groups
        least: experts that a group must have

    Raises:
        ConfigError: the numbers do not fit together
    """
    experts, chosen = count(c, "n_routed_experts"), count(c, "num_experts_per_tok")
    groups = count(c, "n_group") if grouped else 1
    kept = count(c, "topk_group") if grouped else 1
    if experts % groups or experts // groups < least:
        raise ConfigError(
            f"config.json: {experts} experts cannot lie in {groups} groups of "
            f"equal size, at least {least} in each"
        )
    if kept > groups or chosen > kept * (experts // groups):
        raise ConfigError(
            f"config.json: a token cannot go to {chosen} experts in {kept} of "
            f"{groups} groups of {experts} experts"
        )
    return Routing(
        experts=experts,
        chosen=chosen,
        groups=groups,
        kept=kept,
        normed=bool(c.get("norm_topk_prob")),
        factor=number(c, "routed_scaling_factor"),
    )
