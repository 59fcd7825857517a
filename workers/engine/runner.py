"""One step of the model: a plan in, sampled tokens out, in two halves (`launch`, `collect`).

Owns the sequences' tokens and what happens when memory runs out in a step. Must not know scheduling
(the plan says which chunks run in which blocks) nor how a device computes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from kernels.experts import fault_on_card
from kernels.linear import int4_verdict_on
from protocol.errors import HermaError
from protocol.messages import EngineFacts
from workers.engine.drafting.drafter import Drafter
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.memory.out_of_memory import is_of_host, is_out_of_memory
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.sleep.device_sleep import DeviceSleep, NoSleep
from workers.engine.step.batch import SequenceState
from workers.engine.step.host_steps import HostSteps
from workers.engine.step.prompt_scores import Scores, score_prompt
from workers.engine.step.sampler import read
from workers.engine.step.states import States
from workers.engine.step.steps import EngineSteps, Launched, Unsampled
from workers.engine.tier.engine_tier import EngineTier
from workers.loop import NO_STEP, DeviceUse, LargestStep
from workers.scheduler import (
    NO_MOVES,
    Chunk,
    SequenceStart,
    StepPlan,
    StepResult,
    WindowSizes,
)

T = TypeVar("T")


@dataclass(slots=True)
class InFlight:
    """A launched step. `launched` holds its tokens, or the error of its draw, which `collect`
    raises; None if it samples nothing. `failed` pairs sequences that failed at the launch with the
    reason; `embeddings` are float32 bytes by sequence; `scores` are those of `StepResult`.
    """

    step: int
    launched: Launched | Unsampled | Exception | None
    failed: dict[int, str]
    embeddings: dict[int, bytes]
    scores: tuple[Scores, ...] = ()


class ModelRunner:
    """Runs plans. `facts` and `eos_ids` are fixed at load; `model_dir` holds the text files;
    `model` and `cache` are for checks below this seam. `windows` are the blocks of layers that keep
    only their window, None without such.

    Steps are collected in the order in which they were launched.
    """

    def __init__(
        self,
        model: Network,
        cache: KvCache,
        facts: EngineFacts,
        model_dir: Path,
        steps: EngineSteps | None = None,
        largest: LargestStep = NO_STEP,
        *,
        verifies: bool = False,
    ) -> None:
        """`steps` None: those of `steps_on` for the model's device. `largest`: what a probe has
        measured. `verifies`: plans may carry drafts.
        """
        self.windows: WindowSizes | None = None
        if cache.has_windows:
            self.windows = WindowSizes(cache.num_window_blocks, model.config.kept_window)
        self.verifies = verifies
        self.facts = facts
        self.eos_ids: frozenset[int] = model.config.eos_ids
        self.model_dir = model_dir
        self.model = model
        self.cache = cache
        self.tier: EngineTier | None = None
        self.sleep: DeviceSleep | NoSleep = NoSleep()
        self._largest = largest
        self._steps = steps or steps_on(model, cache, facts)
        self._vocab_size = model.config.vocab_size
        self._has_states = bool(model.config.delta_rules)
        self._states: dict[int, SequenceState] = {}
        self._lost: dict[int, str] = {}
        self._unsampled: InFlight | None = None
        self._embedding: set[int] = set()

    @property
    def lookahead(self) -> int:
        """How many steps may be launched beyond the one that is collected next."""
        return self._steps.lookahead

    @property
    def drafter(self) -> Drafter | None:
        """The drafting network that runs behind each step, if there is one."""
        return self._steps.drafter

    @property
    def verified_rows(self) -> tuple[int, ...]:
        """See `EngineSteps.verified_rows`."""
        return self._steps.verified_rows

    @property
    def num_sequences(self) -> int:
        """Sequences whose state is kept."""
        return len(self._states)

    def attach(self, tier: EngineTier) -> None:
        """Use a host tier, which was made for these caches and states. Preempted sequences go there
        too, but for speculation, where tokens of drafts in flight have no place yet.
        """
        self.tier = tier
        tier.swaps = not self.verifies
        self._steps.swap_with(tier.swapper)

    @property
    def kept(self) -> States:
        """See `EngineSteps`."""
        return self._steps.kept

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent states of sequences and prefixes."""
        return self._steps.state_bytes

    @property
    def device_use(self) -> DeviceUse:
        """The use of the device, for the table at the end of a start."""
        steps = self._steps
        captured, wanted = steps.num_graphs if isinstance(steps, DeviceSteps) else (0, 0)
        kv_bytes = self.cache.num_bytes()
        weights = self.model.weights
        return DeviceUse(
            weights.num_bytes(), kv_bytes, captured, wanted, self._largest,
            weights.prefill_bytes, self.state_bytes, self._trouble(), weights.host_bytes,
            self.cache.num_window_blocks * self.cache.block_size, self.model.config.kept_window,
        )  # fmt: skip

    def _trouble(self) -> str:
        device, dtype = self.model.device, self.model.weights.embedding.dtype
        if device.type != "cuda":
            return ""
        verdict = int4_verdict_on(device, dtype)
        own = verdict.text if verdict is not None and verdict.is_fault else ""
        return "; ".join([each for each in (own, fault_on_card(device)) if each])

    def run(self, plan: StepPlan) -> StepResult:
        """Launch and collect."""
        return self.collect(self.launch(plan))

    def launch(self, plan: StepPlan) -> InFlight:
        """Start computing the plan.

        A sequence with ids outside the vocabulary, or whose chunk does not fit into memory, is in
        `failed` of the result. It also fails in the next plan, which may be made before this
        failure is known and relies on the missing chunk. The plan's other sequences go on; but if
        memory runs out in a model with recurrent states they all fail, and their requests go on
        elsewhere.
        """
        self._move(plan)
        lost = self._lost
        lost.update(self._invalid(plan.started))
        chunks = [self._sound(chunk) for chunk in plan.chunks if chunk.seq not in lost]
        embeddings: dict[int, bytes] = {}
        scores: tuple[Scores, ...] = ()
        if self._embedding:
            own = [chunk for chunk in chunks if chunk.seq in self._embedding]
            chunks = [chunk for chunk in chunks if chunk.seq not in self._embedding]
            embeddings, scores = self._fitting(own, self._embed, (embeddings, scores))
        launch = partial(self._launch, takes_in=plan.takes_in)
        launched = self._fitting(chunks, launch, None)
        failed = {chunk.seq: lost[chunk.seq] for chunk in plan.chunks if chunk.seq in lost}
        step = InFlight(plan.step, launched, failed, embeddings, scores)
        if isinstance(launched, Unsampled):
            self._unsampled = step
        return step

    def collect(self, step: InFlight) -> StepResult:
        """Wait for the tokens of a step and append them to the sequences that still live.

        A sequence whose logits are not numbers, or whose grammar allows no token, is in `failed`.
        If the next step is launched but its grammars wait for these tokens, launches its draw.
        """
        try:
            return self._collect(step)
        finally:
            self._sample_next()

    def _collect(self, step: InFlight) -> StepResult:
        embeddings = tuple(step.embeddings.items())
        if step.launched is None:
            lost = tuple(step.failed.items())
            return StepResult(step.step, (), lost, embeddings=embeddings, scores=step.scores)
        if isinstance(step.launched, Exception):
            raise step.launched
        assert isinstance(step.launched, Launched)  # the step before it was collected
        sampled, broken = read(step.launched.wait())
        for item in sampled:
            state = self._states.get(item.seq)
            if state is not None:
                state.tokens.extend(item.ids)
        ungrammatical = {seq: error for seq in broken if (error := self._grammar_error(seq))}
        not_numbers = dict.fromkeys(broken, "the model's output is not a number")
        failed = {**step.failed, **not_numbers, **ungrammatical}
        return StepResult(
            step.step,
            tuple(sampled),
            tuple(failed.items()),
            ungrammatical=frozenset(ungrammatical),
            embeddings=embeddings,
            scores=step.scores,
            drafting=step.launched.drafting(),
        )

    def _sample_next(self) -> None:
        """Launch the draw of the step in flight that waits for tokens, if there is one. An error is
        raised when that step is collected. The draw may be repeated, because it changes nothing
        before its end.
        """
        step, self._unsampled = self._unsampled, None
        if step is None or not isinstance(step.launched, Unsampled):
            return
        sample = step.launched.sample
        for is_last in (False, True):
            try:
                step.launched = sample()
            except (RuntimeError, MemoryError, HermaError) as error:
                step.launched = error
                if is_last or not is_out_of_memory(error):
                    return
            else:
                return
            torch.cuda.empty_cache()

    def _grammar_error(self, seq: int) -> str:
        state = self._states.get(seq)
        grammar = None if state is None else state.grammar
        return "" if grammar is None else grammar.error or ""

    @property
    def used_graph(self) -> bool:
        """See `EngineSteps.used_graph`."""
        return self._steps.used_graph

    @property
    def has_pending_captures(self) -> bool:
        """See `EngineSteps.has_pending_captures`."""
        return self._steps.has_pending_captures

    def prepare(self, *, pending_only: bool) -> bool:
        """See `EngineSteps.prepare`."""
        return self._steps.prepare(pending_only=pending_only)

    def hidden(self, plan: StepPlan) -> list[tuple[Chunk, Tensor]]:
        """The last hidden states [length, hidden] of every chunk, unsampled; for checks."""
        self._move(plan)
        return self._steps.hidden(plan.chunks, self._states)

    def _move(self, plan: StepPlan) -> None:
        """Swap, end and start sequences as the plan says."""
        if plan.moves != NO_MOVES:  # equal, but another object on a rank that was told the plan
            self._steps.move(plan.moves)
        for seq in plan.ended:
            self._states.pop(seq, None)
            self._embedding.discard(seq)
            self._lost.pop(seq, None)
        self._steps.end(plan.ended)
        started = [SequenceState(start) for start in plan.started]
        self._states.update({state.seq: state for state in started})
        self._embedding.update(state.seq for state in started if state.embeds)
        self._steps.start(started)

    def _fitting(
        self, chunks: list[Chunk], compute: Callable[[Sequence[Chunk]], T], nothing: T
    ) -> T:
        """What `compute` returns for the chunks that fit into memory, or `nothing`. Records the
        sequences of the others as lost.
        """
        while chunks:
            made, lacking = self._try(chunks, compute, nothing)
            if not lacking:
                return made
            if self._has_states:
                # The states of some layers may have moved on, those of others not.
                self._lost.update((chunk.seq, _state_lost_text(lacking, chunk)) for chunk in chunks)
                return nothing
            culprit = max(chunks, key=_appetite)
            chunks.remove(culprit)
            self._lost[culprit.seq] = _out_of_memory_text(lacking, culprit)
        return nothing

    def _launch(self, chunks: Sequence[Chunk], *, takes_in: bool) -> Launched | Unsampled | None:
        return self._steps.launch(chunks, self._states, takes_in=takes_in)

    def _embed(self, chunks: Sequence[Chunk]) -> tuple[dict[int, bytes], tuple[Scores, ...]]:
        """The embeddings of the prompts that end in these chunks, as float32 bytes: the last
        token's hidden state behind the final norm, scaled to an L2 norm of 1. For sequences that
        want log-probabilities, those of their tokens.
        """
        found = self._steps.hidden(chunks, self._states)
        with torch.inference_mode():
            scores = tuple(
                score
                for chunk, hidden in found
                if (state := self._states[chunk.seq]).num_top is not None
                and (score := score_prompt(self.model, hidden, chunk.start, state)) is not None
            )
            ends = [
                (chunk.seq, hidden[-1])
                for chunk, hidden in found
                if chunk.samples and self._states[chunk.seq].num_top is None
            ]
            if not ends:
                return {}, scores
            states = self.model.final_norm(torch.stack([hidden for _, hidden in ends]))
            rows = states.float().cpu()
            embeddings = {
                seq: normalize(row[: self._states[seq].dimensions], dim=0).numpy().tobytes()
                for (seq, _), row in zip(ends, rows, strict=True)
            }
        return embeddings, scores

    def _try(
        self, chunks: Sequence[Chunk], compute: Callable[[Sequence[Chunk]], T], nothing: T
    ) -> tuple[T, str]:
        """What `compute` returns, and which memory did not suffice: "" if all did. Tries twice
        after an error of the driver: a repeated step writes the same keys and values. A model with
        recurrent states has one try, because states would move on twice.
        """
        for is_last in (self._has_states, True):
            try:
                return compute(chunks), ""
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or self.model.ranks is not None:
                    raise  # other ranks have gone on, and none can repeat a step alone
                is_torch = isinstance(error, torch.OutOfMemoryError)
                lacking = "memory of the host" if is_of_host(error) else "memory"
            # Outside the handler, where the exception's frames hold no tensors of the failed step.
            torch.cuda.empty_cache()
            if is_last or is_torch:
                break
            # A kernel or a workspace asked the driver for memory, which torch has now returned.
        return nothing, lacking

    def _sound(self, chunk: Chunk) -> Chunk:
        """The chunk, without its drafts if one is outside the vocabulary: as an index it would
        break the CUDA context.
        """
        if chunk.drafts and max(chunk.drafts) >= self._vocab_size:
            return msgspec.structs.replace(chunk, drafts=())
        return chunk

    def _invalid(self, started: Sequence[SequenceStart]) -> list[tuple[int, str]]:
        """Sequences with a token id outside the vocabulary, and the reason. As an index such an id
        raises on the CPU and would break a CUDA context.
        """
        size = self._vocab_size
        return [
            (start.seq, f"token id {largest} is outside the vocabulary of {size}")
            for start in started
            if (largest := largest_id(start.token_ids)) >= size
        ]


class DraftingSetup(NamedTuple):
    """Whether steps verify drafts (`is_on`), and the drafting network that runs behind them, if
    there is one. `clock` times its passes on a host.
    """

    is_on: bool = False
    drafter: Drafter | None = None
    clock: Callable[[], float] = perf_counter


def steps_on(
    model: Network,
    cache: KvCache,
    facts: EngineFacts,
    spare_bytes: int = 0,
    drafting: DraftingSetup = DraftingSetup(),  # noqa: B008 - a constant
) -> EngineSteps:
    """The steps of the model's device. CUDA graphs leave `spare_bytes` of the card to the largest
    step.
    """
    is_on, drafter, clock = drafting
    if model.device.type == "cuda":
        return DeviceSteps(
            model,
            cache,
            facts,
            spare_bytes=spare_bytes,
            drafter=drafter,
            verifies=is_on,
        )
    return HostSteps(model, cache, facts, drafter, verifies=is_on, clock=clock)


def largest_id(ids: array[int]) -> int:
    """0 if there are none; 10 us for 32k ids, where `max` takes 1 ms."""
    return int(np.frombuffer(ids, np.uint32).max(initial=0))


def _appetite(chunk: Chunk) -> tuple[int, int]:
    """A sort key by temporary memory, which grows with a chunk's rows, then with its context."""
    return chunk.length, chunk.start


def _state_lost_text(lacking: str, chunk: Chunk) -> str:
    return (
        f"out of {lacking} in a step with {chunk.length} tokens after {chunk.start}, which may "
        "have changed recurrent states; lower token_budget or kv_tokens of this worker"
    )


def _out_of_memory_text(lacking: str, chunk: Chunk) -> str:
    return (
        f"out of {lacking} in a chunk of {chunk.length} tokens after {chunk.start}; "
        "lower token_budget or kv_tokens of this worker"
    )
