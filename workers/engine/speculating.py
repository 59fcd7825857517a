"""What proposes drafts in an engine, by its configuration and its runner.

Owns the choice of source and policy. Must not know how drafts are verified.
"""

from __future__ import annotations

from typing import Final

from config import INDEX_DRAFTERS, WorkerConfig
from workers.engine.runner import Runner
from workers.engine.settings import drafting
from workers.speculation import (
    FINE_SIZES,
    NUM_TEXT_SOURCES,
    CardSource,
    DraftDepth,
    MatchOdds,
    PlaceOdds,
    Policy,
    Speculation,
    TextSource,
    TimeTable,
)

_NGRAM: Final = INDEX_DRAFTERS[0]


def speculation_for(config: WorkerConfig, runner: Runner) -> Speculation | None:
    """What the engine of this worker proposes drafts with, if with anything."""
    chosen = drafting(config, runner.model.config)
    if chosen is None:
        return None
    depth = None if chosen.depth == "adaptive" else chosen.depth
    captured = runner.verified_rows
    beyond = [size for size in FINE_SIZES if not captured or size > captured[-1]]
    awaiting = TimeTable((*captured, *beyond))
    policy = Policy(looks_ahead=runner.lookahead > 0, awaiting=awaiting)
    drafter = runner.drafter
    if drafter is None:
        text = TextSource(MatchOdds(NUM_TEXT_SOURCES), uses_fleet=chosen.drafter != _NGRAM)
        return Speculation(text, policy, depth)
    most = drafter.max_depth
    odds = PlaceOdds(most)
    card = CardSource(drafter.name, odds)
    if depth is not None:
        return Speculation(card, policy, min(most, depth))
    return Speculation(card, policy, draft_depth=DraftDepth(odds, policy, most))
