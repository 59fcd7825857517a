"""Agents of the field's shape beside each other: what caches and admission bring.

Owns the cells and their figures. A cell has as many agents as fit, or a multiple of them, on one
worker; agents ask again when they have their answer, so a slow fleet gets less work. Must not know
how a cache decides.

Figures are of the turns that ended between a tenth of the time and the moment when the first agent
ran out of turns.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any, Final

from benchmarks.agents.shape import num_fitting
from benchmarks.routing.agents import READERS, agents_trace
from benchmarks.routing.cache import BlockCache
from benchmarks.routing.cost_model import QWEN3_8B_H200
from benchmarks.routing.policies.base import Placed, RoutingPolicy, Setting
from benchmarks.routing.policies.herma import MAX_PAUSE_S, Herma
from benchmarks.routing.policies.simple import RoundRobin
from benchmarks.routing.run import percentile
from benchmarks.routing.simulation import Simulation
from benchmarks.routing.tiers import LruChains, OracleChains, TieredCache, TtlChains
from benchmarks.routing.trace import RoutingTrace, TracedTurn
from benchmarks.routing.worker import SimWorker, WorkerReport, WorkerSpec
from gateway.conversations.returns import Away, Hint, ReturnModel
from workers.scheduler.retention import KeptChains, ReturnExpectation

KV_TOKENS: Final = 730_000
"""What a card of 141 GB holds beside an 8B in 16 bits."""
HOST_FACTOR: Final = 4
"""The host tier holds this many times the tokens of the card: 430 GB here, a part of a card's
host.
"""
NUM_CONVERSATIONS: Final = 4
RATIOS: Final = (1.0, 1.5, 2.0, 4.0)
ORDERS: Final = ("lru", "ttl", "return", "belady")
ADMISSIONS: Final = ("none", "queue", "programs")
"""`none`: each request goes to the engine at once, which starts them in order, as the field's
engines do. `queue`: the gateway's queue. `programs`: the same, and conversations keep their place.
"""
_WARM: Final = 0.1


@dataclass(frozen=True, slots=True)
class AgentsCell:
    """One simulation, of `num_workers` equal workers. `tells`: their events name the tier.
    `num_readers` people chat beside the agents.
    """

    ratio: float
    order: str
    admission: str
    has_host: bool
    seed: int
    kv_tokens: int = KV_TOKENS
    num_workers: int = 1
    tells: bool = True
    num_readers: int = 0


@dataclass(slots=True)
class _Session:
    """A session, which may be away."""

    away: Away | None = None


class Learning(Herma):
    """Our policy, which learns when conversations return and tells the caches."""

    def __init__(self, setting: Setting, trace: RoutingTrace, max_pause_s: float) -> None:
        super().__init__(setting, max_pause_s=max_pause_s)
        self.returns = ReturnModel()
        self._sessions = {turn.session: _Session() for turn in trace.turns}
        self._turns = trace.turns
        self._workers = setting.workers

    def arrived(self, turn: TracedTurn, now: float) -> Sequence[Placed]:
        self.returns.returned(self._sessions[turn.session], now)
        return super().arrived(turn, now)

    def on_report(self, report: WorkerReport, now: float) -> Sequence[Placed]:
        for number in report.finished:
            turn = self._turns[number]
            # Every second agent says that it is done; of the others nothing comes.
            hint = Hint(is_over=turn.is_last and turn.number % 2 == 0)
            session = self._sessions[turn.session]
            found = self.returns.ended(session, now, tool=turn.tool, hint=hint)
            cache = self._workers[report.worker].cache
            cache.retain(number, turn.session, ReturnExpectation(*found))
        return super().on_report(report, now)


class ClosedLoop(Simulation):
    """Ends when the first agent has no turn left. `next_use` is the time of the turn that follows
    the one of that number: known, once the one before has ended.
    """

    def __init__(
        self, trace: RoutingTrace, policy: RoutingPolicy, workers: Sequence[SimWorker]
    ) -> None:
        self.arrives_at: dict[object, float] = {}
        super().__init__(trace, policy, workers)

    def next_use(self, name: object) -> float:
        return self.arrives_at.get(name, inf)

    def _finished(self, number: int, now: float) -> None:
        super()._finished(number, now)
        later = self._next_turns.get(number, ())
        if not later and self._turns[number].key != READERS:
            self._num_open = 0
        for other in later:
            turn = self._turns[other]
            if turn.session == self._turns[number].session:
                self.arrives_at[number] = now + turn.pause_s


def run_cell(cell: AgentsCell) -> dict[str, Any]:
    """Simulate; the row of the table."""
    size = 512
    num_fit = cell.num_workers * num_fitting(cell.kv_tokens)
    num_agents = max(1, round(cell.ratio * num_fit))
    trace = agents_trace(num_agents, NUM_CONVERSATIONS, cell.seed, cell.num_readers)
    spec = WorkerSpec(QWEN3_8B_H200, cell.kv_tokens, 64, 8192)
    num_blocks = cell.kv_tokens // size
    loops: list[ClosedLoop] = []

    def next_use(name: object) -> float:
        return loops[0].next_use(name)

    def cache() -> BlockCache:
        kept = _CHAINS[cell.order](next_use)
        if not cell.has_host:
            return BlockCache(num_blocks, kept=kept)
        num_host = HOST_FACTOR * num_blocks
        return TieredCache(num_blocks, num_host, size, kept, tells=cell.tells)

    workers = [SimWorker(number, spec, cache(), size) for number in range(cell.num_workers)]
    setting = Setting(cell.num_workers, spec, size, cell.seed, workers)
    policy: RoutingPolicy
    if cell.admission == "none":
        policy = RoundRobin(setting)
    else:
        policy = Learning(setting, trace, MAX_PAUSE_S if cell.admission == "programs" else 0.0)
    loop = ClosedLoop(trace, policy, workers)
    loops.append(loop)
    loop.run()
    return {**_named(cell), "agents": num_agents, **_figures(trace, loop)}


def _named(cell: AgentsCell) -> dict[str, Any]:
    return {
        "ratio": cell.ratio,
        "order": cell.order,
        "admission": cell.admission,
        "host": cell.has_host,
        "seed": cell.seed,
        "readers": cell.num_readers,
    }


def _figures(trace: RoutingTrace, loop: ClosedLoop) -> dict[str, Any]:
    end_s = max(one.finished_at for one in loop.outcomes)
    begin_s = _WARM * end_s
    done = [
        (turn, one)
        for turn, one in zip(trace.turns, loop.outcomes, strict=True)
        if one.finished_at > begin_s
    ]
    both: dict[bool, list[float]] = {False: [], True: []}
    for turn, one in done:
        both[turn.key == READERS].append(one.first_token_at - one.arrived_at)
    waits, readers = sorted(both[False]), sorted(both[True])
    prompts = sum(turn.prompt_tokens for turn, _ in done)
    cached = sum(one.cached_tokens for _, one in done)
    outputs = sum(turn.output_tokens for turn, _ in done)
    return {
        "turns": len(done),
        "throughput_tok_s": outputs / (end_s - begin_s),
        "hit_rate": cached / prompts,
        "computed_per_turn": (prompts - cached) / len(done),
        "ttft_p50_s": percentile(waits, 0.5),
        "ttft_p90_s": percentile(waits, 0.9),
        "ttft_max_s": waits[-1],
        "readers_p90_s": percentile(readers, 0.9) if readers else 0.0,
        "readers_max_s": max(readers, default=0.0),
    }


_HEAD: Final = (
    "| agents | memory | admission, order | tok/s | hits | computed a turn "
    "| first token p50 / p90 / longest, s | of readers p90 / longest, s |"
)
_Chains = Callable[[Callable[[object], float]], KeptChains]
_CHAINS: Final[dict[str, _Chains]] = {
    "lru": lambda _next_use: LruChains(),
    "ttl": lambda _next_use: TtlChains(),
    "return": lambda _next_use: KeptChains(512),
    "belady": OracleChains,
}


def cells(
    seeds: Sequence[int], ratios: Sequence[float] = RATIOS, num_readers: int = 0
) -> Iterator[AgentsCell]:
    """The cells of the table: on the card alone all orders, with a host's tier the two that
    matter. With readers, the admissions on the card alone.
    """
    for seed, ratio in product(seeds, ratios):
        if num_readers:
            for admission in ADMISSIONS:
                order = "lru" if admission == "none" else "return"
                cell = AgentsCell(ratio, order, admission, has_host=False, seed=seed)
                yield replace(cell, num_readers=num_readers)
            continue
        yield AgentsCell(ratio, "lru", "none", has_host=False, seed=seed)
        yield AgentsCell(ratio, "lru", "queue", has_host=False, seed=seed)
        yield AgentsCell(ratio, "return", "queue", has_host=False, seed=seed)
        for order in ORDERS:
            yield AgentsCell(ratio, order, "programs", has_host=False, seed=seed)
        yield AgentsCell(ratio, "lru", "none", has_host=True, seed=seed)
        yield AgentsCell(ratio, "return", "queue", has_host=True, seed=seed)
        yield AgentsCell(ratio, "return", "programs", has_host=True, seed=seed)


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown, a line for each row."""
    text = [_HEAD, "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        memory = "card and host" if row["host"] else "card"
        waits = " / ".join(f"{row[f'ttft_{name}_s']:.1f}" for name in ("p50", "p90", "max"))
        text.append(
            f"| {row['ratio']:g}x: {row['agents']} | {memory} | {row['admission']}, {row['order']} "
            f"| {row['throughput_tok_s']:.0f} | {row['hit_rate']:.3f} "
            f"| {row['computed_per_turn']:,.0f} | {waits} | {_of_readers(row)} |"
        )
    return text


def _of_readers(row: dict[str, Any]) -> str:
    return f"{row['readers_p90_s']:.1f} / {row['readers_max_s']:.1f}" if row["readers"] else "-"


_Named = tuple[float, str, str, bool]
"""The name of a cell: the multiple of what fits, the admission, the order, and whether it has a
host tier.
"""


def bar_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What has to hold at twice the agents that fit, means over seeds; empty without the rows."""
    found: dict[_Named, list[dict[str, Any]]] = {}
    for row in rows:
        name = row["ratio"], row["admission"], row["order"], row["host"]
        found.setdefault(name, []).append(row)

    def mean(figure: str, of: _Named) -> float:
        return sum(float(row[figure]) for row in found[of]) / len(found[of])

    def times(figure: str, of: _Named, over: _Named) -> float:
        return mean(figure, of) / mean(figure, over)

    card, host = (2.0, "programs", "return", False), (2.0, "programs", "return", True)
    plain, once = (2.0, "none", "lru", False), (1.0, "programs", "return", True)
    known = (2.0, "programs", "belady", False)
    if not {card, host, plain, once, known} <= set(found):
        return []
    hits, rate, p90 = "hit_rate", "throughput_tok_s", "ttft_p90_s"
    computed = times("computed_per_turn", card, known)
    lru = mean(hits, plain)
    return [
        "| at 2x | bar | found |",
        "|---|---|---|",
        f"| hit rate with a host tier | >= 0.90 | {mean(hits, host):.3f} |",
        f"| hit rate on the card alone (LRU: {lru:.3f}) | >= 0.70 | {mean(hits, card):.3f} |",
        f"| tok/s with a host tier over 1x | >= 0.8 | {times(rate, host, once):.2f} |",
        f"| tok/s on the card over LRU's | >= 1.5 | {times(rate, card, plain):.2f} |",
        f"| LRU's p90 first token over the card's | >= 2 | {times(p90, plain, card):.1f} |",
        f"| LRU's p90 over that with a host tier | >= 2 | {times(p90, plain, host):.1f} |",
        f"| computed tokens over Belady's | <= 1.10 | {computed:.2f} |",
    ]
