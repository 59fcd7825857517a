"""The seam between the runner and a device: a step is started, and read later.

Owns what both kinds of step share: its shape, and the reading of its tokens. Must not know plans.
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
from workers.scheduler import Chunk, DraftTiming, Moves, SwapRoom


class TokensLost(HermaError):
    """A step was computed, but what it sampled cannot be read: it must not be repeated."""


class Steps(Protocol):
    """Computes chunks."""

    @property
    def lookahead(self) -> int:
        """Steps that may be started beyond the one that is read next."""

    @property
    def drafter(self) -> Drafter | None:
        """What drafts behind each step."""

    @property
    def verified_rows(self) -> tuple[int, ...]:
        """Up to how many rows steps with drafts take equally long, rising; beyond, and where there
        are none, each row takes its time.
        """

    def start(self, states: Sequence[SequenceState]) -> None:
        """New sequences, before the first step that names them."""

    def end(self, seqs: Sequence[int]) -> None:
        """Forget sequences; unknown ones are no fault."""

    def launch(
        self,
        chunks: Sequence[Chunk],
        states: dict[int, SequenceState],
        *,
        takes_in: bool = True,
    ) -> "Launched | Unsampled | None":
        """Start the step; None if it is over and has sampled nothing. `takes_in`: see `StepPlan`.
        Raises `TokensLost`, `torch.OutOfMemoryError` and what the network raises; but for the
        first, the same chunks, or some of them, may then be launched again.
        """

    def move(self, moves: Moves) -> None:
        """Copy preempted sequences out of the device and back, before the next step."""

    @property
    def swap_room(self) -> SwapRoom | None:
        """What the host has for preempted sequences."""

    @property
    def state_bytes(self) -> int:
        """What recurrent states take; 0 for a network that has none."""

    @property
    def used_graph(self) -> bool:
        """Whether the step that was launched last replayed a graph."""

    @property
    def has_pending_captures(self) -> bool:
        """Whether a step has missed something that `prepare` can make."""

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
    """A step on its way. `done` is None if its tokens are there already. `drafting`: the draft pass
    that the time to these tokens covers, which may be asked for when they are there.
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
    """A step whose network runs and whose tokens cannot be drawn yet: a grammar must first see
    tokens that the step before samples. `sample` launches the draw; call it once, as soon as they
    are known and before the next step is launched.
    """

    sample: Callable[[], Launched]


def fetch(picked: Picked) -> Launched:
    """Copy tokens to the host behind the step that makes them, without waiting."""
    if not picked.ids.is_cuda:
        # The next step may write over them, as on a card, where it does so behind the copies.
        drafts = None if picked.drafts is None else picked.drafts.clone()
        return Launched(replace(picked, ids=picked.ids.clone(), drafts=drafts))
    scores = picked.scores
    if scores is not None:
        own, values, ids = scores
        scores = (_to_host(own), _to_host(values), _to_host(ids))
    drafts = None if picked.drafts is None else _to_host(picked.drafts)
    ids = _to_host(picked.ids)
    on_host = replace(picked, ids=ids, scores=scores, drafts=drafts)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    return Launched(on_host, done)


def _to_host(tensor: Tensor) -> Tensor:
    """Pinned memory comes from torch's cache, which knows when a copy is done."""
    target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return target.copy_(tensor, non_blocking=True)
