"""Which worker takes a sequence.

Owns the cost, in milliseconds of delay for everybody, and the choice of its minimum. There are no
thresholds and no weights to tune. Must not know queues, caps or who may wait.

    cost   = wait + prefill + harm
    wait     until the prefills ahead on that worker are over
    prefill  own uncached tokens at its measured rate. A prefix that k other recent conversations
             share will be used there again, so this one is charged 1/(k+1) of it: a hot prefix
             spreads over idle workers, a private history does not.
    harm     own prefill stops each running decode for as long, and decodes slow each other down

LMetric (arXiv 2603.15202) argues for the same two factors, uncached tokens and batch size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

from gateway.core.worker_state import Worker
from protocol.ids import WorkerId

PRIOR_PREFILL_TOKENS_PER_S: Final = 2000.0
PRIOR_STEP_MS: Final = 20.0
LEAST_PREFILL_TOKENS_PER_S: Final = 1.0
"""Slower ones count as this: what a broken worker reports must not make a cost infinite."""
DECODE_SLOWDOWN: Final = 0.02
"""Each running sequence lengthens a decode step by 2 %: 2.52 to 3.27 ms from 1 to 16 sequences
(0.6B model, H200)."""

TIE_MS: Final = 1.0
TIE_RATIO: Final = 0.05
"""Costs closer than that are equal: rates are averages and drift by as much."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a sequence brings. `sharing`: along its prompt, (end in blocks, how many other recent
    conversations share the blocks up to there).
    """

    session: str
    prompt_tokens: int
    num_blocks: int
    block_size: int
    expected_output: int
    sharing: Sequence[tuple[int, int]] = ()
    home: WorkerId | None = None
    prefer: WorkerId | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """A worker with room. `matched_blocks` of the prompt are there; `held_blocks` in all."""

    worker: Worker
    matched_blocks: int
    held_blocks: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The best option and why."""

    worker: Worker
    cached_tokens: int
    uncached_tokens: int
    prefill_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class _Scored:
    option: Option
    cached_tokens: int
    uncached_tokens: int
    prefill_s: float
    wait_ms: float
    prefill_ms: float
    harm_ms: float
    cost_ms: float


def choose(work: Work, options: Sequence[Option], now: float) -> Choice:
    """The option of least cost. Raises `ValueError` if there is none."""
    rate, step_ms = _typical(options)
    scored = [_score(work, option, rate, step_ms, now) for option in options]
    least_ms = min(score.cost_ms for score in scored)
    limit_ms = least_ms * (1 + TIE_RATIO) + TIE_MS
    tied = [score for score in scored if score.cost_ms <= limit_ms]
    best = min(tied, key=lambda score: _tie_order(work, score))
    return Choice(
        worker=best.option.worker,
        cached_tokens=best.cached_tokens,
        uncached_tokens=best.uncached_tokens,
        prefill_s=best.prefill_s,
        reason=_explain(work, best, tied, scored),
    )


def _typical(options: Sequence[Option]) -> tuple[float, float]:
    """Prefill rate and step time for workers that have not measured theirs: their peers' mean.

    A prior worse than the peers would keep a new worker idle, and so unmeasured, for ever.
    """
    loads = [option.worker.load for option in options if option.worker.load is not None]
    rates = [load.prefill_tokens_per_s for load in loads if load.prefill_tokens_per_s > 0]
    steps = [load.step_ms for load in loads if load.step_ms > 0]
    rate = sum(rates) / len(rates) if rates else PRIOR_PREFILL_TOKENS_PER_S
    return rate, sum(steps) / len(steps) if steps else PRIOR_STEP_MS


def _score(
    work: Work, option: Option, typical_rate: float, typical_step_ms: float, now: float
) -> _Scored:
    worker, load = option.worker, option.worker.load
    rate = (load.prefill_tokens_per_s if load else 0.0) or typical_rate
    rate = max(LEAST_PREFILL_TOKENS_PER_S, rate)
    step_ms = (load.step_ms if load else 0.0) or typical_step_ms
    # The engine computes at least the last token, so a hit never covers the whole prompt.
    full_blocks = max(0, work.prompt_tokens - 1) // work.block_size if work.block_size else 0
    matched = min(option.matched_blocks, full_blocks)
    cached = matched * work.block_size
    uncached = work.prompt_tokens - cached
    discount = _shared_discount(matched, work.sharing) * work.block_size
    own_ms = uncached * 1000 / rate
    prefill_ms = max(0.0, uncached - discount) * 1000 / rate
    running = worker.num_running
    decode_ms = 2 * running * work.expected_output * step_ms * DECODE_SLOWDOWN
    wait_ms, harm_ms = worker.wait_s(now) * 1000, running * own_ms + decode_ms
    return _Scored(
        option=option,
        cached_tokens=cached,
        uncached_tokens=uncached,
        prefill_s=own_ms / 1000,
        wait_ms=wait_ms,
        prefill_ms=prefill_ms,
        harm_ms=harm_ms,
        cost_ms=wait_ms + prefill_ms + harm_ms,
    )


def _shared_discount(matched: int, sharing: Sequence[tuple[int, int]]) -> float:
    """How many of the uncached blocks others will pay for: k/(k+1) of a block that k share."""
    discount, position = 0.0, matched
    for end, num_others in sharing:
        if end > position:
            discount += (end - position) * num_others / (num_others + 1)
            position = end
    return discount


def _tie_order(work: Work, score: _Scored) -> tuple[bool, bool, int, int, int]:
    """The worker asked for, the one the conversation knows, the emptiest; then by lot, but the
    same lot each time for the same conversation.
    """
    worker = score.option.worker
    lot = xxhash.xxh3_64_intdigest(worker.name.encode() + work.session.encode())
    return (
        worker.worker_id != work.prefer,
        worker.worker_id != work.home,
        worker.num_running,
        score.option.held_blocks,
        lot,
    )


def _explain(work: Work, best: _Scored, tied: Sequence[_Scored], scored: Sequence[_Scored]) -> str:
    worker = best.option.worker
    parts = [
        f"{worker.name}: {best.cached_tokens} of {work.prompt_tokens} tokens cached",
        f"wait {best.wait_ms:.0f} + prefill {best.prefill_ms:.0f} + harm {best.harm_ms:.0f} ms",
    ]
    if len(scored) == 1:
        parts.append("the only one with room")
        return "; ".join(parts)
    if len(tied) > 1:
        why = {work.prefer: "asked for", work.home: "home of the session"}
        parts.append(f"tie, {why.get(worker.worker_id, 'least used')}")
    other = min((s for s in scored if s is not best), key=lambda score: score.cost_ms)
    parts.append(f"next {other.option.worker.name} {other.cost_ms:.0f} ms")
    return "; ".join(parts)
