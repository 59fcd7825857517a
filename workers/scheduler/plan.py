"""The messages between scheduler and runner: a plan of one step, and its result.

Owns the frozen values that cross that seam once per step. Must not know how the scheduler chooses
nor how the runner computes. The runner keeps the tokens of every sequence itself: those of its
`SequenceStart`, then those that it samples; preemption does not end that state.

Steps take effect in the order of their plans, but the scheduler may make the next plan before it
knows the tokens of the last step. Such a plan names a token by its position only; the runner knows
the id. If a sequence ends with that unknown token, the next plan holds a stray chunk for it. The
runner computes the stray chunk like any other, it writes only to blocks that its sequence held when
the plan was made, and its result is ignored.

A chunk may carry drafts: tokens that may follow, computed in the same step. A draft is accepted if
it and all drafts before it equal the tokens sampled at their positions, so a step may answer with
several tokens. Only its result says how many. A chunk that was planned before that result assumes
one token; the runner moves it on by the number of accepted drafts.

msgspec Structs, because 256 chunks and as many answers are made per step: 0.12 us each, where a
frozen dataclass costs 0.57 us.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

import msgspec

from protocol.messages import TokenLogprobs
from protocol.sampling import SamplingParams

ON_CARD: Final = -1
"""Stands for a token id that only the card knows."""


NO_SLOT: Final = -1
"""Stands for no slot: no state is restored."""


class SequenceStart(msgspec.Struct, frozen=True):
    """A sequence that the runner has not seen before; sent in the plan of its first chunk.

    `token_ids` (u32) are the prompt and the outputs of earlier attempts; the first `num_prompt` are
    the prompt. The receiver may keep the array but must not change it. `grammar` is the compiled
    grammar of the submission, used by this sequence alone. If it `embeds`, the result is the
    embedding of the prompt, cut to `dimensions` numbers if given, instead of a token; with
    `num_top` the log-probabilities of the prompt's tokens, a part from each of its chunks.
    """

    seq: int
    token_ids: array[int]
    num_prompt: int
    sampling: SamplingParams
    seed: int
    grammar: object | None = None
    embeds: bool = False
    dimensions: int | None = None
    num_top: int | None = None


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Compute positions [start, start + length) of a sequence, and behind them its `drafts`: token
    ids, or `ON_CARD` for each.

    - `block_ids` cover all these positions, in order. They may differ from those of the step before
      at any index: after a preemption, and when a block equals a cached one, which takes its place.
      While nothing changes, decodes come with the same tuple.
    - `samples`: a token is sampled from the logits of the last position, and one behind each draft.
      Without it nothing is sampled, and there are no drafts.
    - `num_to_draft`: how many drafts the drafting network makes for the next step, behind the last
      token that this step samples. The blocks cover them too.
    - `may_move`: the chunk begins one position later for each draft of its sequence that the step
      before accepts, at most `may_move` positions. The blocks cover them too.

    - `window_ids` are those of the blocks of layers that keep only their window, if there are any:
      entry i stands for the same tokens as that of `block_ids`. Entries of tokens that no position
      of the chunk sees are not valid.

    The other fields are for models with recurrent layers. A chunk at 0 begins without a state. A
    chunk that `restores` begins with the state in that slot of the prefix states. Any other begins
    with the state behind the chunk before it. `saves` are pairs (position, slot), positions rising:
    the state behind that position is saved in that slot. The last position may be the chunk's end.
    The first may be the end of the chunk before, if drafts behind that end were accepted: this
    chunk folds them into the state, so the state without them is saved first. Such a chunk does not
    restore.
    """

    seq: int
    start: int
    length: int
    block_ids: tuple[int, ...]
    samples: bool
    drafts: tuple[int, ...] = ()
    num_to_draft: int = 0
    restores: int = NO_SLOT
    saves: tuple[tuple[int, int], ...] = ()
    may_move: int = 0
    window_ids: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int:
        """Positions that are computed, drafts included."""
        return self.length + len(self.drafts)


class SequenceMove(msgspec.Struct, frozen=True, gc=False):
    """A copy of a preempted sequence's keys and values: block i of `block_ids` on the card from or
    to page i of `pages` on the host; and of its recurrent state, from or to `state_pages`, if the
    model has one.
    """

    seq: int
    block_ids: tuple[int, ...]
    pages: tuple[int, ...]
    state_pages: tuple[int, ...] = ()


class SequenceMoves(msgspec.Struct, frozen=True, gc=False):
    """The copies before a step: first those `out` to the host, then those `back` to the card."""

    out: tuple[SequenceMove, ...] = ()
    back: tuple[SequenceMove, ...] = ()


NO_MOVES: Final = SequenceMoves()


class StepPlan(msgspec.Struct, frozen=True):
    """One forward pass, with at most one chunk per sequence.

    `ended` are sequences that neither this plan nor a later one names: the runner drops their state
    before the step. The plan before may name them while it is in flight. `takes_in`: a drafter on
    the host computes the rows of this step too; a drafter on a card computes those of every step.
    """

    step: int
    started: tuple[SequenceStart, ...]
    chunks: tuple[Chunk, ...]
    ended: tuple[int, ...]
    moves: SequenceMoves = NO_MOVES
    takes_in: bool = True


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """The new tokens of one sequence; `logprobs` is empty or one per id. Without ids the token is
    not there yet, and the next plan computes its position again.

    All ids but the last are accepted drafts, whose keys and values are computed. The next chunk
    starts with the last id. If that chunk is planned already, it assumes one id, or `may_move`.
    """

    seq: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class DraftTiming(NamedTuple):
    """A pass of the drafter: `depth` drafts for each of `num_sequences` sequences. `seconds` are
    part of the time of the step whose result holds it. On a host `depth` may be 0: the drafter took
    the rows in and drafted nothing.
    """

    num_sequences: int = 0
    depth: int = 0
    seconds: float = 0.0


NO_DRAFTING: Final = DraftTiming()


class StepResult(msgspec.Struct, frozen=True):
    """The outcome of a plan: for each sampling chunk a `Sampled`, or an entry of `embeddings`
    (sequence, float32 bytes) if its sequence embeds. `scores` are triples of a sequence, the
    position of a prompt token, and the log-probabilities of the tokens from there on. Failed
    sequences have none. Answers for sequences that have ended meanwhile are ignored, and may be
    missing.

    `failed` pairs a sequence with the reason (e.g. out of memory); it ends with an error. The
    `ungrammatical` ones are among the failed: their grammar allows no token. `drafting` is the
    draft pass within the time of this result: on a card the one behind the step before, on a host
    the one behind this step.
    """

    step: int
    sampled: tuple[Sampled, ...]
    failed: tuple[tuple[int, str], ...] = ()
    ungrammatical: frozenset[int] = frozenset()
    embeddings: tuple[tuple[int, bytes], ...] = ()
    scores: tuple[tuple[int, int, tuple[TokenLogprobs, ...]], ...] = ()
    drafting: DraftTiming = NO_DRAFTING
