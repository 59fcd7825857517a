"""The seam between the runner and a device: a step is launched, and its tokens are read later.

Owns the interface of steps on the CPU and on a card, and the reading of their tokens. Must not know
plans.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from protocol.errors import HermaError
from workers.engine.drafting.drafter import Drafter
from workers.engine.step.batch import SequenceState
from workers.engine.step.sampler import Picked
from workers.engine.step.states import States
from workers.engine.tier.copies import Swapper
from workers.scheduler import Chunk, DraftTiming, SequenceMoves


class TokensLost(HermaError):
    """A step was computed, but its tokens cannot be read. It must not be repeated."""


class EngineSteps(Protocol):
    """Computes steps of chunks on one device."""

    @property
    def lookahead(self) -> int:
        """How many steps may be launched beyond the one that is read next."""

    @property
    def drafter(self) -> Drafter | None:
        """The drafting network that runs behind each step, if there is one."""

    @property
    def verified_rows(self) -> tuple[int, ...]:
        """The sizes, rising, of the graphs for steps with drafts: a step takes as long as one of
        the next size. Beyond the last, and if empty, time grows with each row.
        """

    def start(self, states: Sequence[SequenceState]) -> None:
        """New sequences, before the first step that names them."""

    def end(self, seqs: Sequence[int]) -> None:
        """Forget sequences; unknown ones are ignored."""

    def launch(
        self,
        chunks: Sequence[Chunk],
        states: dict[int, SequenceState],
        *,
        takes_in: bool = True,
    ) -> "Launched | Unsampled | None":
        """Launch the step; None if it is over and samples nothing. `takes_in`: see `StepPlan`.

        Raises `TokensLost`, `torch.OutOfMemoryError` and what the network raises. After any of them
        except `TokensLost` the same chunks, or some of them, may be launched again.
        """

    def move(self, moves: SequenceMoves) -> None:
        """Copy preempted sequences to the host and back, before the next step."""

    def swap_with(self, swapper: Swapper) -> None:
        """Let `swapper` make the copies of `move`."""

    @property
    def kept(self) -> States:
        """The recurrent states of sequences and prefixes."""

    @property
    def state_bytes(self) -> int:
        """Bytes of recurrent states; 0 for a network that has none."""

    @property
    def used_graph(self) -> bool:
        """Whether the last launched step replayed a graph."""

    @property
    def has_pending_captures(self) -> bool:
        """Whether a step lacked a graph that `prepare` can capture."""

    def prepare(self, *, pending_only: bool) -> bool:
        """Do one piece of work that makes later steps faster; False if there was none to do.

        With `pending_only`, only what a step has missed already.
        """

    def hidden(
        self, chunks: Sequence[Chunk], states: dict[int, SequenceState]
    ) -> list[tuple[Chunk, Tensor]]:
        """The last hidden states [length, hidden] of every chunk, in the order of the batch."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A launched step. `done` is None if its tokens are there already. `drafting` returns the draft
    pass whose time is part of the time to these tokens; call it after the tokens have arrived.
    """

    picked: Picked
    done: torch.cuda.Event | None = None
    drafting: Callable[[], DraftTiming] = DraftTiming

    def wait(self) -> Picked:
        """The tokens, on the host."""
        if self.done is not None:
            self.done.synchronize()
        return self.picked


@dataclass(frozen=True, slots=True)
class Unsampled:
    """A step whose network runs, but whose tokens cannot be drawn yet, because a grammar must first
    see the tokens of the step before. `sample` launches the draw: call it once, as soon as those
    are known and before the next step is launched.
    """

    sample: Callable[[], Launched]


def fetch(picked: Picked, drafting: Callable[[], DraftTiming] = DraftTiming) -> Launched:
    """Copy tokens to the host behind the step that makes them, without waiting. `drafting`: see
    `Launched`.
    """
    if not picked.ids.is_cuda:
        # The next step may overwrite them. (On a card it does so behind the copies.)
        drafts = None if picked.drafts is None else picked.drafts.clone()
        on_host = replace(picked, ids=picked.ids.clone(), drafts=drafts)
        return Launched(on_host, drafting=drafting)
    scores = picked.scores
    if scores is not None:
        own, values, ids = scores
        scores = (_to_host(own), _to_host(values), _to_host(ids))
    drafts = None if picked.drafts is None else _to_host(picked.drafts)
    ids = _to_host(picked.ids)
    on_host = replace(picked, ids=ids, scores=scores, drafts=drafts)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    return Launched(on_host, done, drafting)


def _to_host(tensor: Tensor) -> Tensor:
    """A copy in pinned memory from torch's cache, which knows when the copy is done."""
    target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return target.copy_(tensor, non_blocking=True)
