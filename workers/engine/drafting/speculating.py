"""The making of an engine's speculation from its configuration and its runner.

Owns the choice of source and policy, and the earlier measurements that they start from. Must not
know how drafts are verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import torch

from config import INDEX_DRAFTERS, SpeculationConfig, WorkerConfig
from protocol.messages import EngineFacts
from workers.engine.drafting.description import promised_length
from workers.engine.drafting.drafter import Drafter
from workers.engine.drafting.record import DraftRecord, FitOrigin
from workers.engine.models.network import Network
from workers.model_dir import drafter_dir, local_dir
from workers.speculation import (
    FINE_SIZES,
    NUM_TEXT_SOURCES,
    CardSource,
    DraftDepth,
    DraftTimes,
    Fit,
    MatchOdds,
    PlaceOdds,
    Speculation,
    SpeculationPolicy,
    TakingIn,
    TextSource,
    TimeTable,
)

_NGRAM: Final = INDEX_DRAFTERS[0]


class DraftingRunner(Protocol):
    """What is read of a runner: a `ModelRunner`, or the first of several ranks, which alone chooses
    drafts and depths; plans carry them to the others.
    """

    facts: EngineFacts
    model: Network

    @property
    def lookahead(self) -> int:
        """See `ModelRunner`."""

    @property
    def drafter(self) -> Drafter | None:
        """See `ModelRunner`."""

    @property
    def verified_rows(self) -> tuple[int, ...]:
        """See `ModelRunner`."""


def drafting_of(config: WorkerConfig, runner: DraftingRunner) -> SpeculationConfig | None:
    """How this engine drafts; with "auto" by the model's own head, if its start has found one."""
    chosen = config.drafting
    if chosen is None or runner.drafter is None or chosen.drafter not in INDEX_DRAFTERS:
        return chosen
    return SpeculationConfig(config.model)


def speculation_for(
    config: WorkerConfig, runner: DraftingRunner, fit: Fit | None = None
) -> Speculation | None:
    """The speculation of this worker's engine, None if it is off. It starts from the `fit` of an
    earlier engine.
    """
    fit = fit or Fit()
    chosen = drafting_of(config, runner)
    if chosen is None:
        return None
    depth = None if chosen.depth == "adaptive" else chosen.depth
    captured = runner.verified_rows
    beyond = [size for size in FINE_SIZES if not captured or size > captured[-1]]
    sizes = (*captured, *beyond)
    parts_bare = runner.lookahead == 0 and runner.drafter is not None
    policy = SpeculationPolicy(
        looks_ahead=runner.lookahead > 0,
        ahead=TimeTable(known=fit.times_ahead(FINE_SIZES), takes_least=parts_bare),
        awaiting=TimeTable(sizes, fit.times(sizes)),
        parts_bare=parts_bare,
    )
    drafter = runner.drafter
    if drafter is None:
        rates = [list(row) for row in fit.matches]
        text = TextSource(MatchOdds(NUM_TEXT_SOURCES, rates), uses_fleet=chosen.drafter != _NGRAM)
        return Speculation(text, policy, depth)
    most = drafter.max_depth
    odds = PlaceOdds(most, list(fit.places))
    card, promised = CardSource(drafter.name, odds), _promised(config, chosen)
    if depth is not None:
        return Speculation(card, policy, min(most, depth), promised=promised)
    draft_depth = DraftDepth(odds, policy, most, DraftTimes(fit.drafting))
    # On a card it costs next to nothing that the drafter takes in a step's rows.
    taking = None if runner.lookahead else TakingIn(runner.facts.block_size, fit.expense)
    return Speculation(card, policy, draft_depth=draft_depth, promised=promised, taking_in=taking)


def kept_speculation(
    config: WorkerConfig, runner: DraftingRunner, environ: Mapping[str, str]
) -> tuple[Speculation | None, DraftRecord | None]:
    """`speculation_for`, started from what an earlier engine has recorded, and the record to which
    this one writes what it learns.
    """
    chosen = drafting_of(config, runner)
    if chosen is None:
        return None, None
    device = runner.model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    numbers = config.quantization, config.head, str(runner.model.weights.embedding.dtype)
    origin = FitOrigin(config.model, chosen.drafter, " ".join((name, *numbers)))
    record = DraftRecord(origin, environ)
    speculation = speculation_for(config, runner, record.load())
    if speculation is not None:
        record.follow(speculation)
    return speculation, record


def _promised(config: WorkerConfig, chosen: SpeculationConfig) -> float | None:
    """The promised tokens per pass: the number in the configuration, else the one that
    `training.drafters` wrote into the drafter's config.json.
    """
    if chosen.promised is not None:
        return chosen.promised
    is_own_head = chosen.drafter == config.model
    path = local_dir(config.model) if is_own_head else drafter_dir(chosen.drafter)
    return None if path is None else promised_length(path)
