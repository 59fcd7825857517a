"""The cost of a placement: which worker takes a sequence.

Owns the cost, in milliseconds of delay for all requests, and the choice of its minimum. There are
no thresholds. Must not know queues or caps.

    cost          = wait + load + prefill + interference
    wait          time until the prefills ahead on that worker are over, including those promised to
                  waiting requests; a short prompt begins beside a long one
    load          time until the blocks that the worker has on its host alone are on its card: their
                  bytes at the rate that it measured, behind the loads under way there. Requests
                  that are ahead are computed meanwhile, so only what goes beyond them counts.
    prefill       own uncached tokens at the worker's learned rate. A prefix that k other recent
                  conversations share will be used there again, so this request is charged 1/(k+1)
                  of it: a hot prefix spreads over idle workers, a private history does not. A
                  prefix that a worker is computing now spreads less: others can wait for it there.
    interference  the delay of others: of the waiting requests, each on one worker of the fleet, by
                  the own prefill; and of the answers that run there, which pause for that prefill
                  and are slower afterwards. A pause in an answer counts less than a wait for one.

Under load the queue makes uncached tokens more expensive, so the cache counts more when work piles
up. LMetric (arXiv 2603.15202) argues for the same two factors, uncached tokens and batch size.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import xxhash

from gateway.routing.prefill_rate import PRIOR_TOKENS_PER_S
from gateway.routing.worker import STEPS_AHEAD, Worker
from gateway.telemetry import CandidateWorker
from protocol.ids import WorkerId

PRIOR_STEP_MS: Final = 20.0
DECODE_SLOWDOWN: Final = 0.0075
"""Each running sequence lengthens a decode step by this share. Measured: 0.5 % for short sequences
(5.25 to 7.03 ms from 1 to 64; 8B model, H200) and several times that for long contexts.
"""
PAUSE_WEIGHT: Final = 0.3
"""The weight of a second by which a running answer is delayed, against a second of waiting for one:
clients read while an answer pauses. This and `DECODE_SLOWDOWN` were chosen together on traces
(docs/routing.md).
"""

UNDER_WAY: Final = 0.7
"""While a worker computes a shared prefix, the discount on it is reduced by this share, because
others can use it there. Without any discount nearly all users of a hot prefix would go there.
"""

TIE_MS: Final = 1.0
TIE_RATIO: Final = 0.05
"""Costs that differ by less than both together are equal: rates are averages, which drift."""


class PlacementWork(msgspec.Struct, frozen=True):
    """The sequence to place. `sharing` has pairs along its prompt: (end in blocks, how many other
    recent conversations share the blocks up to there). `num_waiting` is the number of sequences in
    the queue per worker.
    """

    session: str
    prompt_tokens: int
    block_size: int
    expected_output: int
    sharing: Sequence[tuple[int, int]] = ()
    home: WorkerId | None = None
    prefer: WorkerId | None = None
    num_waiting: float = 0.0


class Option(msgspec.Struct, frozen=True, gc=False):
    """A worker that may be chosen. It holds `matched_blocks` of the prompt, of which
    `coming_blocks` are not computed yet and `host_blocks` are on its host alone, and `held_blocks`
    in all. `promised_s` of its prefill time is promised to waiting requests.
    """

    worker: Worker
    matched_blocks: int
    held_blocks: int
    promised_s: float = 0.0
    coming_blocks: int = 0
    host_blocks: int = 0


class PlacementScore(msgspec.Struct, frozen=True, gc=False):
    """An option and its cost, with `num_running` other sequences there. `prefill_s` is the own
    prefill without discount. `fresh_tokens` would have to be computed if the sequence began now,
    before the `coming_blocks` are computed. `host_tokens` of the cached tokens have to be loaded.
    """

    option: Option
    cached_tokens: int
    uncached_tokens: int
    fresh_tokens: int
    num_running: int
    prefill_s: float
    wait_ms: float
    prefill_ms: float
    interference_ms: float
    cost_ms: float
    host_tokens: int = 0
    load_ms: float = 0.0

    def candidate(self, *, is_chosen: bool) -> CandidateWorker:
        """This score as plain data, for operators."""
        return CandidateWorker(
            worker=self.option.worker.name,
            is_chosen=is_chosen,
            running=self.num_running,
            cached_tokens=self.cached_tokens,
            uncached_tokens=self.uncached_tokens,
            wait_ms=round(self.wait_ms, 3),
            prefill_ms=round(self.prefill_ms, 3),
            interference_ms=round(self.interference_ms, 3),
            cost_ms=round(self.cost_ms, 3),
            host_tokens=self.host_tokens,
            load_ms=round(self.load_ms, 3),
        )


Why = str
"""The reason in one word, for a metric: `only`, `prefer`, `own`, `home`, `even`, `cached`, `moved`.
"""


_IN_WORDS: Final = {
    "only": "the only one with room",
    "prefer": "tie, asked for",
    "own": "tie, holds most of the conversation",
    "home": "tie, home of the session",
    "even": "tie, least used",
}


class RouteDecision(msgspec.Struct, frozen=True):
    """The best option, and why it is the best."""

    work: PlacementWork
    best: PlacementScore
    scores: Sequence[PlacementScore]
    why: Why

    @property
    def worker(self) -> Worker:
        return self.best.option.worker

    @property
    def candidates(self) -> tuple[CandidateWorker, ...]:
        """The options as plain data, for operators."""
        return tuple([score.candidate(is_chosen=score is self.best) for score in self.scores])

    @property
    def reason(self) -> str:
        """Why, in one line. Computed on demand: most decisions about a full queue are not used."""
        work, best = self.work, self.best
        host, load = "", ""
        if best.host_tokens:
            host, load = f", {best.host_tokens} on its host", f"load {best.load_ms:.0f} + "
        text = (
            f"{best.option.worker.name}: {best.cached_tokens} of {work.prompt_tokens} tokens "
            f"cached{host}; wait {best.wait_ms:.0f} + {load}prefill {best.prefill_ms:.0f} + "
            f"interference {best.interference_ms:.0f} ms"
        )
        if self.why in _IN_WORDS:
            text = f"{text}; {_IN_WORDS[self.why]}"
        other: PlacementScore | None = None
        for score in self.scores:
            if score is not best and (other is None or score.cost_ms < other.cost_ms):
                other = score
        if other is None:
            return text
        return f"{text}; next {other.option.worker.name} {other.cost_ms:.0f} ms"


def choose(work: PlacementWork, options: Sequence[Option], now: float) -> RouteDecision:
    """The option of least cost. Raises `ValueError` if there is none."""
    scores = _scores(work, options, now)
    if len(scores) == 1:
        return RouteDecision(work, scores[0], scores, "only")
    limit_ms = min([score.cost_ms for score in scores]) * (1 + TIE_RATIO) + TIE_MS
    tied = [score for score in scores if score.cost_ms <= limit_ms]
    best = tied[0] if len(tied) == 1 else _break_tie(work, tied)
    return RouteDecision(work, best, scores, _why(work, best, tied, scores))


def _typical(options: Sequence[Option], now: float) -> tuple[float, float]:
    """The options' mean prefill rate, weighted by trust, and mean step time in ms. A worker without
    a measurement is assumed to be like its peers: a worse assumption would keep it idle, and so
    unmeasured, for ever.
    """
    rates = trusts = steps_ms = 0.0
    num_steps = 0
    for option in options:
        worker = option.worker
        if rate := worker.prefill_rate.tokens_per_s:
            trust = worker.prefill_rate.trust(now)
            rates, trusts = rates + trust * rate, trusts + trust
        if worker.load is not None and worker.load.step_ms:
            steps_ms, num_steps = steps_ms + worker.load.step_ms, num_steps + 1
    return (
        rates / trusts if trusts else PRIOR_TOKENS_PER_S,
        steps_ms / num_steps if num_steps else PRIOR_STEP_MS,
    )


def _scores(work: PlacementWork, options: Sequence[Option], now: float) -> list[PlacementScore]:
    """The cost of each option. It is one loop because it takes half of a decision's time, and a
    call per option would add a quarter.
    """
    prompt_tokens, block_size, num_waiting = work.prompt_tokens, work.block_size, work.num_waiting
    # The engine computes at least the last token, so a hit never covers the whole prompt.
    most_blocks = (prompt_tokens - 1) // block_size if block_size and prompt_tokens else 0
    typical_rate, typical_step_ms = _typical(options, now)
    # What one more sequence adds to all steps of an answer, on a worker of typical speed. The mean
    # step time of the fleet is used, because one worker's latest step mostly shows whether a long
    # prompt was in it. How many tokens a step makes (`pass_tokens`, drafts) is the worker's own.
    slowdown_ms = 2 * work.expected_output * typical_step_ms * DECODE_SLOWDOWN
    scores: list[PlacementScore] = []
    has_loads = False
    under_way = _under_way(options, most_blocks) if work.sharing else 0
    for option in options:
        worker = option.worker
        estimate = worker.prefill_rate
        matched = min(option.matched_blocks, most_blocks)
        cached = matched * block_size
        uncached = prompt_tokens - cached
        if rate := estimate.tokens_per_s:
            own_s, slower = estimate.seconds(cached, uncached), typical_rate / rate
            if slower != 1.0:
                # An old measurement fades towards what the worker's peers measure.
                kept = slower ** estimate.trust(now, slower)
                own_s, slower = own_s * kept / slower, kept
        else:
            own_s, slower = uncached / typical_rate, 1.0
        prefill_ms = own_ms = own_s * 1000
        if work.sharing:
            discount = _shared_discount(matched, under_way, work.sharing)
            prefill_ms *= 1 - discount * block_size / uncached
        fresh = uncached + option.coming_blocks * block_size
        wait_ms = (worker.wait_s(now, fresh) + option.promised_s) * 1000
        running = worker.num_running
        interference_ms = num_waiting * own_ms + PAUSE_WEIGHT * running * (
            own_ms + slower * slowdown_ms / worker.pass_tokens
        )
        cost_ms = wait_ms + prefill_ms + interference_ms
        has_loads = has_loads or option.host_blocks > 0
        scores.append(
            PlacementScore(
                option,
                cached,
                uncached,
                fresh,
                running,
                own_s,
                wait_ms,
                prefill_ms,
                interference_ms,
                cost_ms,
            )
        )
    if has_loads:
        return [_with_load(score, block_size, now) for score in scores]
    return scores


def _with_load(score: PlacementScore, block_size: int, now: float) -> PlacementScore:
    """The score with the time that the request waits for its load beyond its wait for prefills. The
    load begins when the worker has the request: when at most `STEPS_AHEAD` steps of prefill are
    ahead of it.
    """
    worker = score.option.worker
    host_tokens = min(score.option.host_blocks * block_size, score.cached_tokens)
    if not host_tokens:
        return score
    hidden_ms = min(score.wait_ms, 1000 * STEPS_AHEAD * worker.step_s)
    load_ms = max(0.0, 1000 * worker.load_s(host_tokens, now) - hidden_ms)
    cost_ms = score.cost_ms + load_ms
    return msgspec.structs.replace(score, host_tokens=host_tokens, load_ms=load_ms, cost_ms=cost_ms)


def _under_way(options: Sequence[Option], most_blocks: int) -> int:
    """How many leading blocks some worker is computing now. A worker that has not finished a
    prefill yet is left out: its wait is a guess, so a second copy elsewhere is the safer choice.
    """
    ends = [
        min(option.matched_blocks, most_blocks)
        for option in options
        if option.coming_blocks and option.worker.prefill_rate.tokens_per_s
    ]
    return max(ends, default=0)


def _shared_discount(matched: int, under_way: int, sharing: Sequence[tuple[int, int]]) -> float:
    """How many of the uncached blocks are charged to other requests: k/(k+1) of a block that k
    others share.
    """
    discount, position = 0.0, matched
    for end, num_others in sharing:
        if end > position:
            coming = max(0, min(end, under_way) - position)
            num_blocks = end - position - UNDER_WAY * coming
            discount += num_blocks * num_others / (num_others + 1)
            position = end
    return discount


def _break_tie(work: PlacementWork, tied: Sequence[PlacementScore]) -> PlacementScore:
    """In this order: the preferred worker, the one that holds most of the conversation's own
    blocks, its home, the one with the least work; at last by a hash of the conversation's name.

    Blocks come before the home, because every gateway knows of them, but a gateway knows only the
    homes of requests that it placed itself. Shared blocks do not count: a hot prefix should spread.
    """
    if (preferred := _of_worker(work.prefer, tied)) is not None:
        return preferred
    tied = _with_most_own(work, tied)
    if (home := _of_worker(work.home, tied)) is not None:
        return home
    uses = [(score.option.worker.num_running, score.option.held_blocks) for score in tied]
    least = min(uses)
    equal = [score for score, use in zip(tied, uses, strict=True) if use == least]
    if len(equal) == 1:
        return equal[0]
    seed = work.session.encode()
    return min(
        equal,
        key=lambda score: xxhash.xxh3_64_intdigest(score.option.worker.name.encode() + seed),
    )


def _of_worker(
    worker_id: WorkerId | None, scores: Sequence[PlacementScore]
) -> PlacementScore | None:
    return next((score for score in scores if score.option.worker.worker_id == worker_id), None)


def _with_most_own(work: PlacementWork, tied: Sequence[PlacementScore]) -> Sequence[PlacementScore]:
    """The scores of workers with the most tokens of the prompt that no other conversation shares;
    all scores if no worker has any.
    """
    num_shared = work.sharing[-1][0] * work.block_size if work.sharing else 0
    most = max(score.cached_tokens for score in tied)
    if most <= num_shared:
        return tied
    return [score for score in tied if score.cached_tokens == most]


def _why(
    work: PlacementWork,
    best: PlacementScore,
    tied: Sequence[PlacementScore],
    scores: Sequence[PlacementScore],
) -> Why:
    if len(tied) > 1:
        worker_id = best.option.worker.worker_id
        if worker_id == work.home:
            return "home"
        if worker_id == work.prefer:
            return "prefer"
        return "own" if len(_with_most_own(work, tied)) < len(tied) else "even"
    for score in scores:
        if score.cached_tokens > best.cached_tokens:
            return "moved"
    return "cached"
