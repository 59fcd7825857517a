"""A scheduler and a runner in one process, without a wire.

Owns the loop of plan, run and commit, and the answers. Must not know which tokens are right.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.messages import Accepted, Finished, Grammar, Rejected, Submit, Tokens
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens, unpack_tokens
from workers.engine.grammar.compiler import LlGuidanceCompiler
from workers.engine.runner import InFlight, ModelRunner
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.committing import Outgoing
from workers.scheduler.drafting import Proposer
from workers.scheduler.plan import StepPlan, StepResult
from workers.scheduler.saving import PrefixStates, SavePolicy
from workers.scheduler.scheduler import Scheduler, SchedulerLimits
from workers.scheduler.swapping import SwapSpace
from workers.scheduler.windows import WindowPool, WindowSizes

MODEL: Final = "model"
_LINK: Final = 1
_MAX_STEPS: Final = 100_000


@dataclass
class DrivenAnswer:
    """One request and its answer."""

    prompt: tuple[int, ...]
    outputs: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    finished: Finished | None = None


class Drive:
    """Serves requests over the first `num_blocks` blocks of the runner's cache, `token_budget`
    tokens per step. A small number of blocks forces preemption.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        token_budget: int | None = None,
        num_blocks: int | None = None,
        max_seqs: int | None = None,
        compiler: LlGuidanceCompiler | None = None,
        looks_ahead: bool = False,
        proposer: Proposer | None = None,
        save_policy: SavePolicy | None = None,
        window_sizes: WindowSizes | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`compiler` compiles grammars at once; requests with a grammar need it. `looks_ahead`: a
        step is launched before the one in flight is collected, as the engine does on a card.
        `proposer` proposes drafts, with the seconds of `clock`; without one every step takes a
        second. `save_policy` says where a model with states saves them. `window_sizes` None: all
        blocks of the runner's layers that keep only their window.
        """
        facts = runner.facts
        self.num_blocks = num_blocks or facts.kv_tokens // facts.block_size
        self.answers: dict[int, DrivenAnswer] = {}
        self.num_steps = 0
        self._num_submitted = 0
        self._running: set[int] = set()
        self._runner = runner
        self._compiler = compiler
        self._looks_ahead = looks_ahead
        self._in_flight: tuple[StepPlan, InFlight] | None = None
        self._was_ahead = False
        self._clock = clock
        self._done_at = 0.0 if clock is None else clock()
        limits = SchedulerLimits(
            max_seqs or facts.max_seqs,
            token_budget or facts.token_budget,
            facts.context_length,
            max_waiting=64,
            enforces_grammars=compiler is not None,
        )
        states = PrefixStates.of(facts.snapshots, facts.block_size, save_policy)
        self.tier = None if runner.tier is None else runner.tier.host_tier(0.0)
        swaps = runner.tier is not None and runner.tier.swaps
        sizes = window_sizes or runner.windows
        swap = SwapSpace(self.tier, facts.block_size) if self.tier is not None and swaps else None
        self.blocks = blocks = BlockManager(
            self.num_blocks, facts.block_size, states=states, swap=swap, tier=self.tier,
            windows=None if sizes is None else WindowPool(sizes, facts.block_size),
        )  # fmt: skip
        self._scheduler = Scheduler(
            limits,
            blocks,
            (MODEL,),
            runner.eos_ids,
            lookahead=int(looks_ahead),
            proposer=proposer,
        )
        self._scheduler.expects_growth = False

    @property
    def num_preemptions(self) -> int:
        """The number of preemptions."""
        return self._scheduler.load(0, 0.0, 0.0).preemptions

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return self._scheduler.load(0, 0.0, 0.0).free_blocks

    @property
    def is_copying(self) -> bool:
        """Whether copies from or to the host are under way, or can begin."""
        return self._scheduler.is_copying

    def clear_card(self) -> None:
        """Forget what no sequence holds in the card's prefix cache; the host keeps what it has."""
        self.blocks.clear_card()

    def live(self) -> list[int]:
        """The numbers of the requests that have not ended."""
        return [number for number, answer in self.answers.items() if answer.finished is None]

    def submit(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        outputs: Sequence[int] = (),
        seed: int = 0,
        grammar: Grammar | None = None,
        salt: bytes = b"",
    ) -> int:
        """Submit a request, with the outputs of an earlier attempt. Returns its number. It reuses
        only blocks of requests with the same `salt`.
        """
        number, self._num_submitted = self._num_submitted, self._num_submitted + 1
        self.answers[number] = DrivenAnswer(tuple(prompt), list(outputs))
        packed = pack_tokens(prompt), pack_tokens(outputs)
        request_id = number.to_bytes(16, "little")
        submit = Submit(request_id, 0, MODEL, *packed, sampling, seed, grammar=grammar, salt=salt)
        self._apply(self._scheduler.submit(_LINK, submit, 0.0))
        if grammar is not None and self._compiler is not None:
            compiled = self._compiler.compile(grammar, array("I", outputs))
            self._apply(self._scheduler.compiled((_LINK, request_id, 0), compiled, ""))
        return number

    def abort(self, number: int) -> None:
        """Abort a request; its blocks are free at once."""
        self._apply(self._scheduler.abort(_LINK, number.to_bytes(16, "little"), 0))

    def step(self) -> StepPlan | None:
        """Run one step, or launch it and collect the one before. None if there is no work."""
        self._take_copied()
        plan = self._scheduler.plan()
        if plan is not None:
            self.num_steps += 1
            self._running.difference_update(plan.ended)
            self._running.update(start.seq for start in plan.started)
        if not self._looks_ahead:
            if plan is not None:
                self._commit(plan, self._runner.run(plan), is_ahead=False)
            self._copy()
            return plan
        done = self._in_flight
        self._in_flight = None if plan is None else (plan, self._runner.launch(plan))
        self._copy()
        if done is not None:
            self._commit(done[0], self._runner.collect(done[1]), is_ahead=self._was_ahead)
            self._was_ahead = plan is not None
            return plan or done[0]
        self._was_ahead = False
        return plan

    def _take_copied(self) -> None:
        """Take the copies from and to the host that are over."""
        if self._runner.tier is not None:
            copies = self._runner.tier.copies
            for pages in copies.take_opened():
                self._scheduler.blocks.tier.open(pages)
            now = 0.0 if self._clock is None else self._clock()
            self._scheduler.transferred(copies.take_done(), now)

    def _copy(self) -> None:
        """Begin copies behind the step that is launched."""
        if self._runner.tier is not None:
            for transfer in self._scheduler.transfers():
                self._runner.tier.copies.begin(transfer)

    def _commit(self, plan: StepPlan, result: StepResult, *, is_ahead: bool) -> None:
        seconds = 1.0
        if self._clock is not None:
            seconds, self._done_at = self._clock() - self._done_at, self._clock()
        self._apply(self._scheduler.commit(plan, result))
        self._scheduler.took(plan, result, seconds, is_ahead=is_ahead)

    def finish(self) -> None:
        """Step until there is no work, and then end the last sequences on the runner at once: the
        next plan, which would end them, may be another drive's. Raises `RuntimeError` if the work
        does not end.
        """
        for _ in range(_MAX_STEPS):
            if self.step() is None and not self._scheduler.is_copying:
                self._runner.run(StepPlan(0, (), (), tuple(self._running)))
                self.check()
                return
        raise RuntimeError(f"{self._scheduler!r} still runs after {_MAX_STEPS} steps")

    def check(self) -> None:
        """Raise `IntegrityError` if the records of sequences and blocks contradict each other."""
        self._scheduler.check_integrity()

    def _apply(self, outgoing: Sequence[Outgoing]) -> None:
        for _, message in outgoing:
            match message:
                case Accepted():
                    self._answer(message.request_id).cached_tokens = message.cached_tokens
                case Tokens():
                    for item in message.items:
                        self._answer(item.request_id).outputs.extend(unpack_tokens(item.ids))
                case Finished():
                    self._answer(message.request_id).finished = message
                case Rejected():
                    raise RuntimeError(f"a request was refused: {message.detail}")
                case _:
                    pass  # block events are for routers

    def _answer(self, request_id: bytes) -> DrivenAnswer:
        return self.answers[int.from_bytes(request_id, "little")]


def fresh_runner(runner: ModelRunner) -> ModelRunner:
    """A runner without sequences on the same weights and cache. Every slot of the cache is
    poisoned, so that a read before a write becomes NaN.
    """
    cache = runner.cache
    for keys, values in cache.layers:
        keys.fill_(float("nan"))
        values.fill_(float("nan"))
    return ModelRunner(runner.model, cache, runner.facts, runner.model_dir)
