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
    source: CardSource | TextSource
    if runner.drafter is None:
        odds = MatchOdds(NUM_TEXT_SOURCES)
        source = TextSource(odds, uses_fleet=chosen.drafter != _NGRAM)
    else:
        most = runner.drafter.max_depth
        source = CardSource(runner.drafter.name, PlaceOdds(most), min(most, depth or most))
    captured = runner.verified_rows
    beyond = [size for size in FINE_SIZES if not captured or size > captured[-1]]
    awaiting = TimeTable((*captured, *beyond))
    policy = Policy(looks_ahead=runner.lookahead > 0, awaiting=awaiting)
    return Speculation(source, policy, depth)
