"""The seam between a step and the drafting network that runs behind it.

Owns what a drafter reads of a step, and its result. Must not know plans, sampling or how drafts are
verified.

A drafter never decides the text: the target samples the token of each position, and a draft is
accepted if it equals that token. So wrong drafts cost time only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from kernels.attention import AttentionPlan, PagedPlan
from workers.engine.models.kv_cache import KvCache

TakeIn: TypeAlias = Callable[[Tensor, AttentionPlan | PagedPlan], None]
"""Takes in T rows, given their taps [T, n hidden] and their attention plan."""

Capture: TypeAlias = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""See `workers.engine.graphs.capture`."""


@dataclass(frozen=True, slots=True)
class DraftStep:
    """A pass of the target over T rows (prompts, decodes and verified drafts), and the S sequences
    to draft for. Without sequences the drafter only takes the rows in.

    - `token_ids`, `positions` and `next_ids` int64 [T], never negative; `next_ids` are the tokens
      that follow the rows in their sequences. Behind a sequence's last accepted row they are
      undefined, and the drafter's keys and values there are overwritten before they are read.
    - `taps` [T, n hidden]: the outputs of the layers `Drafter.taps`, side by side. `hidden`
      [T, hidden]: the input of the final norm. Each is None if the drafter does not read it.
    - `plan`: the attention of the rows, for a cache with the same blocks as the target's.
    - `anchors` int64 [S]: the last sampled tokens, not computed yet, at `anchor_positions`
      int64 [S]; `rows` int64 [S] are the rows whose logits gave them.
    - `plan_rows(num_rows, offset)`: the attention of `num_rows` rows of each sequence from its
      anchor's position + `offset` on, one sequence after the other. The sequences hold blocks for
      the positions up to anchor + `depth`.
    - `in_place`: `kept` and the parts of a paged `plan` have the addresses that they had in the
      last step of as many rows, so a graph may read them.
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
        """The rows' `taps`, or `hidden` if the drafter has no taps."""
        return self.hidden if self.taps is None else self.taps


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafts `ids` int64 [S, depth], and `confidence` float32 [S, depth], the drafter's own
    probability of each draft given those before it, if it has one. On the device of the step.
    """

    ids: Tensor
    confidence: Tensor | None = None


class Drafter(Protocol):
    """Drafts for all sequences of an engine, and keeps its keys and values in blocks with the same
    numbers as the target's. It knows no sequences, only rows: they come again after a preemption,
    and a block found in the prefix cache holds the drafter's keys and values too.
    """

    name: str
    max_depth: int
    taps: tuple[int, ...]
    reads_hidden: bool
    cuts_anew: bool
    """Whether it plans attention for other heads than the target's, so that the host must know the
    positions of segments."""

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values."""

    @property
    def take_in(self) -> TakeIn | None:
        """A function that takes in rows behind which nothing is drafted, without waiting. None for
        a drafter that needs the tokens behind the rows.
        """

    @property
    def cache(self) -> KvCache | None:
        """Its keys and values, which `take_cache` makes; None if it keeps none."""

    def take_cache(self, num_blocks: int, block_size: int) -> None:
        """Take memory for the keys and values of `num_blocks` blocks, the dummy block included."""

    def draft(self, step: DraftStep) -> Drafted:
        """Take in the rows of a step and draft behind it, without waiting for the device. Called in
        the order of the steps, under `torch.inference_mode`.
        """


@runtime_checkable
class CapturesDrafts(Protocol):
    """A drafter whose passes over rows in place can be captured."""

    @property
    def has_pending_captures(self) -> bool:
        """Whether a pass was missed."""

    def prepare(self, capture: Capture) -> bool:
        """Capture one pass that was missed; False if there is none. No step may be in flight."""
