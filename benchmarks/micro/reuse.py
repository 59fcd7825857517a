"""The share of agents' prompts that an engine finds in its prefix cache: full attention, which can
continue after any block, compared with hybrids, which can continue only after a saved state.

Owns the fleet: agents with a common system prompt and growing turns. Some answer with reasoning
that the template leaves out of the next prompt; some are forked from another agent in the middle of
its work. With long answers the states that are saved along answers matter too. The scheduler is the
engine's; no step is computed, because every token is known.
"""

import random
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from benchmarks.micro.figures import MicroFigure
from protocol.messages import Accepted, Submit
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from workers.scheduler import (
    BlockManager,
    Outgoing,
    PrefixStates,
    Sampled,
    SavePolicy,
    Scheduler,
    SchedulerLimits,
    StepPlan,
    StepResult,
)

SYSTEM_TOKENS: Final = 12_013
"""An agent's instructions and tools; not a whole number of blocks."""

MOST_POINTS: Final = 5.0
MOST_AGAIN: Final = 4096
"""The most tokens by which a divergence may cost a hybrid more than full attention."""

_BLOCK: Final = 32
_MODEL: Final = "model"
_VOCABULARY: Final = 50_000


class ReuseCard(NamedTuple):
    """The memory of a card: tokens of keys and values, and states of prefixes (None for full
    attention). `along`: tokens of an answer between two states.
    """

    kv_tokens: int
    num_states: int | None = None
    along: int = SavePolicy().along

    def reference(self) -> "ReuseCard":
        """The same card with full attention."""
        return self._replace(num_states=None)

    def prompts_only(self) -> "ReuseCard":
        """The same card without states within answers."""
        return self._replace(along=2**40)


H200: Final = ReuseCard(900_000, 64)
"""The sizes that `herma plan` finds for a 27B in bfloat16 on 141 GB."""

SMALL: Final = ReuseCard(200_000, 8)


class Lengths(NamedTuple):
    """Ranges of tokens of an answer: of its reasoning, which half of the answers have, and of its
    text.
    """

    reasoning: tuple[int, int]
    text: tuple[int, int]


SHORT: Final = Lengths((20, 80), (20, 100))
LONG: Final = Lengths((500, 6_000), (100, 3_000))


class Reused(NamedTuple):
    """The cached tokens of all prompts, and the number of turns."""

    num_cached: int
    num_tokens: int
    num_turns: int

    @property
    def percent(self) -> float:
        """The cached share; 100 if every prompt was cached completely."""
        return 100 * self.num_cached / self.num_tokens


class ReuseTurn(NamedTuple):
    """A prompt and its answer. The next prompt keeps the part after the reasoning."""

    prompt: Sequence[int]
    answer: Sequence[int]


def measure(quick: bool) -> Iterator[MicroFigure]:
    """The cached share of a fleet's prompts; then the worst loss with shifted prompts."""
    num_agents, num_waves = (2, 2) if quick else (12, 10)
    cards = {"H200": H200} if quick else {"H200": H200, "small card": SMALL}
    for name, card in cards.items():
        for strips in (False, True):
            waves = list(fleet(num_agents, num_waves, strips=strips, seed=1))
            full = reused(card.reference(), waves).percent
            states = reused(card, waves).percent
            case = f"{name}, {'reasoning left out' if strips else 'answers kept'}"
            yield MicroFigure(case, "reused with full attention", full, "%")
            yield MicroFigure(case, "reused with states", states, "%")
            bar = MOST_POINTS if card is H200 else None
            yield MicroFigure(case, "lost", full - states, "points", bar)
    yield from _long_answers(quick, cards)
    lengths = (3_000,) if quick else (3_000, 12_100, 40_001)
    again = max(lost_by_parting((length,), length - 100) for length in lengths)
    yield MicroFigure(
        "a prompt that parts 100 tokens earlier", "computed again", again, "", MOST_AGAIN
    )
    rng = random.Random(1)
    again = max(_lost_anywhere(rng) for _ in range(2 if quick else 200))
    yield MicroFigure("one that parts anywhere", "computed again", again, "", MOST_AGAIN)


def _long_answers(quick: bool, cards: dict[str, ReuseCard]) -> Iterator[MicroFigure]:
    """The tokens that a turn computes again after an answer of thousands of tokens."""
    for name, card in cards.items():
        for strips in (False, True):
            size = (2, 2) if quick else (12, 6)
            waves = list(fleet(*size, strips=strips, seed=1, lengths=LONG))
            case = f"{name}, long answers, {'reasoning left out' if strips else 'kept'}"
            full = reused(card.reference(), waves)
            yield MicroFigure(case, "reused with full attention", full.percent, "%")
            kinds = {"states of prompts": card.prompts_only(), "states": card}
            for kind, chosen in kinds.items():
                found = reused(chosen, waves)
                again = (full.num_cached - found.num_cached) / found.num_turns
                yield MicroFigure(case, f"reused with {kind}", found.percent, "%")
                yield MicroFigure(case, f"computed again with {kind}", again, "tokens a turn")


def fleet(
    num_agents: int, num_waves: int, *, strips: bool, seed: int, lengths: Lengths = SHORT
) -> Iterator[list[ReuseTurn]]:
    """The turns of each wave. Another agent may be forked from an agent's prompt."""
    rng = random.Random(seed)
    system = _drawn(rng, SYSTEM_TOKENS)
    histories = [[*system, *_drawn(rng, rng.randrange(100, 600))] for _ in range(num_agents)]
    for _ in range(num_waves):
        turns, grown = [], []
        for history in histories:
            reasoning = _drawn(rng, rng.choice((0, rng.randrange(*lengths.reasoning))))
            text = _drawn(rng, rng.randrange(*lengths.text))
            turns.append(ReuseTurn(tuple(history), (*reasoning, *text)))
            said = text if strips else [*reasoning, *text]
            found = _drawn(rng, rng.randrange(100, 3_000))
            grown.append([*history, *said, *found])
            if rng.random() < 0.15 and len(histories) + len(grown) < 3 * num_agents:
                grown.append([*history, *_drawn(rng, rng.randrange(50, 300))])
        rng.shuffle(turns)
        histories = grown
        yield turns


def reused(card: ReuseCard, waves: Sequence[Sequence[ReuseTurn]]) -> Reused:
    """The reuse of an engine with this card."""
    engine = _Engine(card)
    for turns in waves:
        for turn in turns:
            engine.submit(turn)
        engine.finish()
    return Reused(sum(engine.cached), sum(engine.lengths), len(engine.lengths))


def lost_by_parting(ends: Sequence[int], parts_at: int) -> int:
    """How many more tokens than full attention a hybrid computes of a prompt that equals the last
    one up to `parts_at` tokens; `ends` are the lengths of the turns that led there.
    """
    rng = random.Random(f"{ends} {parts_at}")
    last = _drawn(rng, ends[-1])
    prompts = [*[last[:end] for end in ends], [*last[:parts_at], *_drawn(rng, 300)]]
    found = []
    for card in (H200.reference(), H200):
        engine = _Engine(card)
        for prompt in prompts:
            engine.submit(ReuseTurn(prompt, (1,)))
            engine.finish()
        found.append(engine.cached[-1])
    return found[0] - found[1]


def _lost_anywhere(rng: random.Random) -> int:
    ends = sorted(rng.randrange(100, 30_000) for _ in range(rng.randrange(1, 5)))
    return lost_by_parting(ends, rng.randrange(ends[-1]))


class _Engine:
    """The engine's scheduler, whose sequences output the tokens of their turns. `cached` and
    `lengths` are in tokens, by turn.
    """

    def __init__(self, card: ReuseCard) -> None:
        limits = SchedulerLimits(16, 8192, 200_000, 1_000)
        policy = SavePolicy(along=card.along)
        states = PrefixStates.of(card.num_states, _BLOCK, policy)
        blocks = BlockManager(card.kv_tokens // _BLOCK, _BLOCK, states=states)
        self._scheduler = Scheduler(limits, blocks, (_MODEL,), frozenset())
        self._turns: dict[int, ReuseTurn] = {}
        self.cached: list[int] = []
        self.lengths: list[int] = []

    def submit(self, turn: ReuseTurn) -> None:
        number = len(self.lengths)
        self.lengths.append(len(turn.prompt))
        self.cached.append(0)
        sampling = SamplingParams(max_tokens=len(turn.answer), temperature=0.0)
        prompt = pack_tokens(array("I", turn.prompt))
        request_id = number.to_bytes(16, "little")
        submit = Submit(request_id, 0, _MODEL, prompt, b"", sampling, seed=number)
        self._hear(self._scheduler.submit(1, submit, 0.0))
        self._turns[number] = turn

    def finish(self) -> None:
        by_seq: dict[int, ReuseTurn] = {}
        while (plan := self._scheduler.plan()) is not None:
            by_seq.update((start.seq, self._turns[start.seed]) for start in plan.started)
            self._hear(self._scheduler.commit(plan, _result(plan, by_seq)))

    def _hear(self, outgoing: Sequence[Outgoing]) -> None:
        for _, message in outgoing:
            if isinstance(message, Accepted):
                number = int.from_bytes(message.request_id, "little")
                self.cached[number] = message.cached_tokens


def _result(plan: StepPlan, by_seq: dict[int, ReuseTurn]) -> StepResult:
    """The result of a step: each sampling chunk gets the token of its turn."""
    sampled = []
    for chunk in plan.chunks:
        if chunk.samples:
            turn = by_seq[chunk.seq]
            at = chunk.start + chunk.length - len(turn.prompt)
            sampled.append(Sampled(chunk.seq, (turn.answer[at],)))
    return StepResult(plan.step, tuple(sampled))


def _drawn(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(_VOCABULARY) for _ in range(count)]
