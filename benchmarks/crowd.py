"""`python -m benchmarks.crowd`: first tokens and gaps of a crowd, by the engine's scheduler on a
simulated card.

Owns the virtual clock, the streams, and what a step of an 8B takes on an H200; the scheduler is the
engine's own. Beside it stands "prompts first": vLLM's order, which fills a step of 8,192 tokens
with prompts and lets decodes wait. Nothing is computed, so a policy is compared in seconds, and a
card only has to confirm it. Must not know HTTP.
"""

import argparse
import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, final

from protocol.messages import Finished, Submit, Tokens
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.plan import Sampled, StepPlan, StepResult
from workers.scheduler.scheduler import Scheduler, SchedulerLimits

BLOCK: Final = 64
OUTPUTS: Final = 128
PROMPT: Final = 550
KV_TOKENS: Final = 200_000
MODEL: Final = "m"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of an engine's steps: of `decodes` by their number, each behind some 600 tokens; of a
    prompt `token`, and of each token of its `context`. Beside few decodes `free_tokens` cost
    nothing, because the weights are read anyway. The host launches a step of more than `graph_rows`
    rows kernel by kernel, which takes it at least `launch`.
    """

    decodes: tuple[tuple[int, float], ...]
    token: float
    context: float
    free_tokens: int
    graph_rows: int
    launch: float

    def step(self, num_decodes: int, prompts: Sequence[tuple[int, int]]) -> float:
        """Seconds of a step of decodes and of chunks, each a start and a length."""
        sizes = [count for count, _ in self.decodes]
        at = min(max(num_decodes, 1), sizes[-1])
        high = next(i for i, count in enumerate(sizes) if count >= at)
        (n0, s0), (n1, s1) = self.decodes[max(0, high - 1)], self.decodes[high]
        decode_s = s1 if n0 == n1 else s0 + (s1 - s0) * (at - n0) / (n1 - n0)
        tokens = sum(length for _, length in prompts)
        depth = sum(length * (start + length / 2) for start, length in prompts)
        paid = max(0, tokens - max(0, self.free_tokens - num_decodes))
        card_s = decode_s + self.token * paid + self.context * depth
        return max(card_s, self.launch) if num_decodes + tokens > self.graph_rows else card_s


OF_8B: Final = {
    16: StepTimes(
        ((1, 3.95e-3), (8, 4.25e-3), (64, 6.0e-3), (128, 8.4e-3), (256, 13.5e-3)),
        26e-6, 0.6e-9, 120, 384, 0.0,
    ),
    8: StepTimes(
        ((1, 2.57e-3), (8, 2.9e-3), (64, 4.7e-3), (128, 6.8e-3), (256, 11.1e-3)),
        13.5e-6, 0.6e-9, 60, 1024, 19e-3,
    ),
}  # fmt: skip
"""An 8B on an H200 by the bits of its weights: `docs/engine-benchmark.md`,
`python -m benchmarks.engine.mixed_steps`, and the median gaps of `docs/http-benchmark.md`.
"""


class Engine(Protocol):
    """What a crowd asks: steps, each of which ends at a time and brings tokens to streams."""

    def submit(self, number: int, prompt: list[int]) -> None:
        """A request, whose tokens come as `number`."""

    def step(self, now: float) -> tuple[float, list[int], list[int]] | None:
        """When the next step ends, which requests have a token of it, and which of them are done;
        None while there is nothing to do.
        """


@final
class OwnEngine:
    """The engine's scheduler, a step ahead."""

    def __init__(self, token_budget: int, max_gap_s: float, times: StepTimes) -> None:
        self._times = times
        limits = SchedulerLimits(256, token_budget, 40_960, 4096, max_gap_s=max_gap_s)
        blocks = BlockManager(KV_TOKENS // BLOCK, BLOCK)
        self._scheduler = Scheduler(limits, blocks, (MODEL,), frozenset(), lookahead=1)
        self._in_flight: deque[StepPlan] = deque()

    def submit(self, number: int, prompt: list[int]) -> None:
        """See `Engine`."""
        sampling = SamplingParams(max_tokens=OUTPUTS, temperature=0.0, ignore_eos=True)
        ids = pack_tokens(prompt)
        asked = Submit(number.to_bytes(16), 0, MODEL, ids, b"", sampling, seed=number)
        if self._scheduler.submit(1, asked, 0.0):
            raise RuntimeError(f"request {number} was refused")

    def step(self, now: float) -> tuple[float, list[int], list[int]] | None:
        """See `Engine`."""
        plan = self._scheduler.plan()
        if plan is not None:
            self._in_flight.append(plan)
        if not self._in_flight:
            return None
        if plan is not None and len(self._in_flight) == 1:
            plan = self._scheduler.plan()
            if plan is not None:
                self._in_flight.append(plan)
        done = self._in_flight.popleft()
        prompts = [(chunk.start, chunk.length) for chunk in done.chunks if chunk.length > 1]
        took_s = self._times.step(len(done.chunks) - len(prompts), prompts)
        num_prompt = sum(length for _, length in prompts)
        self._scheduler.step_cost.add(done.chunks, num_prompt, took_s)
        sampled = tuple(Sampled(chunk.seq, (1,)) for chunk in done.chunks if chunk.samples)
        given, ended = [], []
        for _, message in self._scheduler.commit(done, StepResult(done.step, sampled)):
            if isinstance(message, Tokens):
                given += [int.from_bytes(item.request_id) for item in message.items]
            elif isinstance(message, Finished):
                ended.append(int.from_bytes(message.request_id))
        return now + took_s, given, ended


@dataclass
class _Running:
    number: int
    prompt: list[int]
    computed: int = 0
    given: int = 0


@final
class PromptsFirst:
    """vLLM's order: decodes, prompts in progress, prompts that wait, up to 8,192 tokens a step."""

    def __init__(self, times: StepTimes, token_budget: int = 8192, most: int = 1024) -> None:
        self._times = times
        self._budget, self._most = token_budget, most
        self._waiting: deque[_Running] = deque()
        self._running: list[_Running] = []
        self._known: set[int] = set()

    def submit(self, number: int, prompt: list[int]) -> None:
        """See `Engine`."""
        self._waiting.append(_Running(number, prompt))

    def _cached(self, prompt: list[int]) -> int:
        at = (len(prompt) - 1) // BLOCK * BLOCK
        while at and hash(tuple(prompt[:at])) not in self._known:
            at -= BLOCK
        return at

    def step(self, now: float) -> tuple[float, list[int], list[int]] | None:
        """See `Engine`."""
        budget, decodes = self._budget, 0
        prompts: list[tuple[int, int]] = []
        sampled: list[_Running] = []
        for one in self._running:
            left = len(one.prompt) - one.computed
            if left <= 0:
                decodes += 1
                budget -= 1
                sampled.append(one)
        for one in self._running:
            left = len(one.prompt) - one.computed
            if left > 0 and budget > 0:
                budget -= self._compute(one, min(left, budget), prompts, sampled)
        while self._waiting and budget > 0 and len(self._running) < self._most:
            held = sum(len(one.prompt) + OUTPUTS for one in self._running)
            if held + len(self._waiting[0].prompt) + OUTPUTS > KV_TOKENS:
                break
            one = self._waiting.popleft()
            one.computed = self._cached(one.prompt)
            self._running.append(one)
            left = len(one.prompt) - one.computed
            budget -= self._compute(one, min(left, budget), prompts, sampled)
        if not sampled and not prompts:
            return None
        for one in sampled:
            one.given += 1
        ended = [one.number for one in sampled if one.given == OUTPUTS]
        self._running = [one for one in self._running if one.given < OUTPUTS]
        return now + self._times.step(decodes, prompts), [one.number for one in sampled], ended

    def _compute(
        self, one: _Running, length: int, prompts: list[tuple[int, int]], sampled: list[_Running]
    ) -> int:
        prompts.append((one.computed, length))
        one.computed += length
        if one.computed == len(one.prompt):
            sampled.append(one)
            for at in range(BLOCK, len(one.prompt) + 1, BLOCK):
                self._known.add(hash(tuple(one.prompt[:at])))
        return length


@dataclass
class Crowd:
    """Streams that ask again when they have their answer; each begins at its own moment."""

    begins: list[float]
    asks: list[list[list[int]]]
    first_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    later_s: list[float] = field(default_factory=list)
    answer_s: float = 0.0
    took_s: float = 0.0

    def drive(self, engine: Engine) -> None:
        """To the end of all streams."""
        now, number = 0.0, 0
        arrivals = [(begin, stream) for stream, begin in enumerate(self.begins)]
        heapq.heapify(arrivals)
        turns = [0] * len(self.asks)
        owner: dict[int, int] = {}
        asked_at: dict[int, float] = {}
        last_at: dict[int, float] = {}
        while True:
            while arrivals and arrivals[0][0] <= now:
                at, stream = heapq.heappop(arrivals)
                owner[number], asked_at[number] = stream, at
                engine.submit(number, self.asks[stream][turns[stream]])
                turns[stream] += 1
                number += 1
            done = engine.step(now)
            if done is None:
                if not arrivals:
                    break
                now = arrivals[0][0]
                continue
            now, given, ended = done
            for one in given:
                if one in last_at:
                    self.gaps_s.append(now - last_at[one])
                else:
                    which = self.first_s if turns[owner[one]] == 1 else self.later_s
                    which.append(now - asked_at[one])
                last_at[one] = now
            for one in ended:
                self.answer_s += now - asked_at[one]
                if turns[owner[one]] < len(self.asks[owner[one]]):
                    heapq.heappush(arrivals, (now + _CLIENT_S, owner[one]))
        self.took_s = now


_CLIENT_S: Final = 2e-3
"""From an answer's end to the next request, with the way of both."""

APART_MS: Final = 4.0
"""So far apart do requests reach an engine that were sent at one moment: beside 1 ms, which is what
a request takes of a process, the card's gaps of eight streams were not found.
"""


def streams(
    count: int, staggered_s: float, rng: random.Random, apart_s: float = APART_MS / 1e3
) -> Crowd:
    """`count` streams of some requests each that share nothing, at least `apart_s` apart."""
    each = 4 if count <= 8 else 2
    asks = [[_words(rng, PROMPT) for _ in range(each)] for _ in range(count)]
    return Crowd(_begins(count, staggered_s, apart_s, rng), asks)


def agents(
    count: int,
    turns: int,
    staggered_s: float,
    rng: random.Random,
    apart_s: float = APART_MS / 1e3,
) -> Crowd:
    """Conversations behind one system prompt, which grow to 8,000 tokens."""
    shared = _words(rng, 4000)
    asks = []
    for _ in range(count):
        history, mine = shared + _words(rng, 900), []
        for _ in range(turns):
            mine.append(history)
            history = history + _words(rng, 1030)
        asks.append(mine)
    return Crowd(_begins(count, staggered_s, apart_s, rng), asks)


def _begins(count: int, staggered_s: float, apart_s: float, rng: random.Random) -> list[float]:
    return [rng.uniform(0, staggered_s) + apart_s * number for number in range(count)]


def _words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(100_000) for _ in range(count)]


def _at(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def row(name: str, crowd: Crowd) -> str:
    """Milliseconds, and tokens per second."""
    firsts = crowd.first_s + crowd.later_s
    tokens = OUTPUTS * len(firsts)
    return (
        f"| {name} | {tokens / crowd.took_s:,.0f} "
        f"| {_at(firsts, 0.5):.0f} / {_at(firsts, 0.99):.0f} "
        f"| {_at(crowd.gaps_s, 0.5):.1f} / {_at(crowd.gaps_s, 0.99):.1f} |"
    )


def main() -> None:
    """Print a table: each cell in lockstep and staggered, by both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd")
    parser.add_argument("--cells", default="1,8,64,256", metavar="N,N")
    parser.add_argument("--gaps", default="80", metavar="MS,MS", help="values of max_gap_ms")
    parser.add_argument("--budget", type=int, default=4096, help="tokens in a step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bits", type=int, default=16, choices=sorted(OF_8B), help="of weights")
    parser.add_argument("--graph-rows", type=int, metavar="N", help="rows of the largest graphs")
    parser.add_argument(
        "--apart", type=float, default=APART_MS, metavar="MS", help="between requests of one moment"
    )
    arguments = parser.parse_args()
    print("| cell | tok/s | first token | gap |\n|---|---|---|---|")
    for cell in [*map(int, arguments.cells.split(",")), 0]:
        answer_s = 0.0
        for is_staggered in (False, True):
            took_s = []
            for name, engine in _engines(arguments):
                for seed in (arguments.seed, arguments.seed + 1):  # the first warms up
                    rng = random.Random(seed)
                    apart_s = arguments.apart / 1e3
                    crowd = (
                        streams(cell, answer_s, rng, apart_s)
                        if cell
                        else agents(32, 4, answer_s, rng, apart_s)
                    )
                    crowd.drive(engine)
                took_s.append(crowd.answer_s / len(crowd.first_s + crowd.later_s))
                what = f"c={cell}" if cell else "agents"
                print(row(f"{what}{' staggered' if is_staggered else ''}, {name}", crowd))
            answer_s = sum(took_s) / len(took_s)


def _engines(arguments: argparse.Namespace) -> list[tuple[str, Engine]]:
    peer = OF_8B[arguments.bits]
    times = peer if arguments.graph_rows is None else replace(peer, graph_rows=arguments.graph_rows)
    own: list[tuple[str, Engine]] = [
        (f"{gap} ms", OwnEngine(arguments.budget, float(gap) / 1e3, times))
        for gap in arguments.gaps.split(",")
    ]
    return [*own, ("prompts first", PromptsFirst(replace(peer, launch=0.0)))]


if __name__ == "__main__":
    main()
