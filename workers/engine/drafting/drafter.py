"""The seam between a step and what drafts on the device behind it.

Owns what a drafter reads of a step and what it answers. Must not know plans, sampling or how drafts
are verified.

A drafter never decides the text: the token at a position is what the target samples there, and a
draft is accepted if it equals it. Drafts of every quality are correct, and good ones are fast.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from kernels.attention import AttentionPlan, PagedPlan

TakeIn: TypeAlias = Callable[[Tensor, AttentionPlan | PagedPlan], None]
"""Takes in rows, of which these are the taps [T, n hidden] and the attention."""

Capture: TypeAlias = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""See `workers.engine.graphs.capture`."""


@dataclass(frozen=True, slots=True)
class DraftStep:
    """A pass of the target over T rows (prompts, decodes, and verified drafts), and the S sequences
    to draft for, perhaps none: then only the rows are taken in.

    `token_ids`, `positions` and `next_ids`, the tokens that follow the rows in their sequences,
    int64 [T], are never negative. Behind the last accepted row of a sequence they are undefined: a
    drafter's keys and values of those rows are overwritten before they are read. `taps` [T, n
    hidden] are what left the layers `Drafter.taps`, side by side, and `hidden` [T, hidden] what the
    final norm gets, if the drafter reads it. `plan` is the attention of these rows, for caches like
    the target's, with the same blocks.

    `rows` int64 [S] are those whose logits gave the `anchors` int64 [S], which stand at
    `anchor_positions` int64 [S] and are not computed yet. `plan_rows(num_rows, offset)` is the
    attention of `num_rows` rows of each sequence from its anchor's position + `offset` on, one
    sequence after the other; the sequences hold blocks for the positions up to anchor + `depth`.
    `in_place`: what is `kept` and what a paged `plan` consists of lie where they lay in the last
    step of as many rows, so a graph may read them.
    """

    token_ids: Tensor
    next_ids: Tensor
    positions: Tensor
    taps: Tensor | None
    hidden: Tensor | None
    plan: AttentionPlan | PagedPlan
    seqs: tuple[int, ...]
    rows: Tensor
    anchors: Tensor
    anchor_positions: Tensor
    depth: int
    plan_rows: Callable[[int, int], AttentionPlan | PagedPlan]
    in_place: bool = False

    @property
    def kept(self) -> Tensor | None:
        """The rows' taps, or `hidden` of a drafter without taps."""
        return self.hidden if self.taps is None else self.taps


@dataclass(frozen=True, slots=True)
class Drafted:
    """`ids` int64 [S, depth], and the drafter's own probability of each behind those before it,
    float32 [S, depth], if it knows one; both on the device of the step's rows.
    """

    ids: Tensor
    confidence: Tensor | None = None


class Drafter(Protocol):
    """Drafts for all sequences of an engine, and keeps its keys and values in blocks of the same
    numbers. It knows no sequence: what it needs comes as rows, again after a preemption, and what
    is found in the prefix cache is found with its own part.
    """

    name: str
    max_depth: int
    taps: tuple[int, ...]
    reads_hidden: bool
    cuts_anew: bool
    """Whether it cuts segments for heads of its own, so the host must know their places."""

    @property
    def num_bytes(self) -> int:
        """What its weights take."""

    @property
    def token_bytes(self) -> int:
        """What its keys and values of a token take."""

    @property
    def take_in(self) -> TakeIn | None:
        """Takes in rows behind which nothing is drafted; waits for nothing. None where it needs the
        tokens behind them.
        """

    def take_cache(self, num_blocks: int, block_size: int) -> None:
        """Take memory for the keys and values of `num_blocks` blocks, the dummy among them."""

    def draft(self, step: DraftStep) -> Drafted:
        """Take in the rows of a step and draft behind it; waits for nothing. Called in the order of
        the steps, under `torch.inference_mode`.
        """


@runtime_checkable
class CapturesDrafts(Protocol):
    """A drafter whose passes over rows in place can be captured."""

    @property
    def has_pending_captures(self) -> bool:
        """Whether a pass was missed."""

    def prepare(self, capture: Capture) -> bool:
        """Capture one pass that was missed; False if there is none. No step may be in flight."""
