"""Planted bugs: a checker that finds nothing is broken until these show otherwise."""

from collections.abc import Mapping

from baton.dev.sim.plants import (
    arrival,
    caching,
    checkpoints,
    drafts,
    draws,
    epochs,
    gray,
    guests,
    handing,
    lending,
    memory,
    older,
    overload,
    preemption,
    replicas,
    resting,
    reuse,
    routing,
    seals,
    senders,
    unified,
    votes,
)
from baton.dev.sim.plants.plant import Plant

BANK: tuple[Plant, ...] = (
    *arrival.PLANTS,
    *replicas.PLANTS,
    *seals.PLANTS,
    *memory.PLANTS,
    *votes.PLANTS,
    *handing.PLANTS,
    *epochs.PLANTS,
    *preemption.PLANTS,
    *checkpoints.PLANTS,
    *reuse.PLANTS,
    *routing.PLANTS,
    *caching.PLANTS,
    *lending.PLANTS,
    *overload.PLANTS,
    *senders.PLANTS,
    *draws.PLANTS,
    *drafts.PLANTS,
    *unified.PLANTS,
    *resting.PLANTS,
    *gray.PLANTS,
    *older.PLANTS,
    *guests.PLANTS,
)
BY_NAME: Mapping[str, Plant] = {plant.name: plant for plant in BANK}
