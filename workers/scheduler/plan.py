"""What the scheduler has the runner compute, and what the runner answers.

Owns the frozen values that cross that seam once per step. Must not know how the choice was made
nor how it is computed. The runner keeps the tokens of every sequence itself: those of its
`SequenceStart`, then those it samples; preemption does not end that state.

Steps take effect in the order of their plans, but the next plan may be made before the tokens of
the last are known. It then names a token by its position only: the runner has sampled it. A
sequence that ends with that unknown token leaves a stray chunk in the next plan. It is computed
like any other, writes only where its sequence held blocks when it was planned, and is ignored.

A chunk may carry drafts: tokens that may follow, computed in the same step. Those that equal what
is sampled at their positions are accepted, up to the first that does not, so a step may answer with
several tokens. How many is known with its result. A chunk that is planned before begins behind one
token, and the runner moves it on by as many as are accepted.

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
"""In place of the id of a draft that the card holds."""


NO_SLOT: Final = -1
"""No state is restored."""


class SequenceStart(msgspec.Struct, frozen=True):
    """A sequence that the runner has not seen before; sent in the plan of its first chunk.

    `token_ids` (u32) are the prompt and the outputs of earlier attempts; `num_prompt` of them
    are prompt. The receiver may keep the array but must not change it. `grammar` is what the
    engine's compiler made of that of the submission, for this sequence alone. `embeds` the prompt:
    its embedding is wanted, of the first `dimensions` numbers, instead of a token.
    """

    seq: int
    token_ids: array[int]
    num_prompt: int
    sampling: SamplingParams
    seed: int
    grammar: object | None = None
    embeds: bool = False
    dimensions: int | None = None


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Compute positions [start, start + length) of a sequence, and behind them its `drafts`: token
    ids, or `ON_CARD` for each.

    `block_ids` cover every position of these, in order. They may differ from those
    of the step before at any index: after a preemption, and when a block turns out to equal a
    cached one and takes its place. While nothing changes, decodes come with the same tuple. If
    `samples`, the next token is sampled from the logits of the last position, and one behind each
    draft; otherwise nothing is sampled, and there are no drafts. `num_to_draft`: how many drafts
    the card makes behind the token that follows the accepted ones; the blocks cover those too.
    `may_move`: it begins one position later for each draft of its sequence that the step before
    accepts, at most `may_move` later; the blocks cover that.

    Of a model with recurrent layers, a chunk at 0 begins with no state, one that `restores` with
    that in this slot of the prefixes', any other with that behind the chunk before. It `saves` the
    states behind these positions, rising, in these slots. The last may be its end. The first may
    be the end of the chunk before without the drafts that were accepted behind it, which go into
    the state in this chunk: then it does not restore.
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

    @property
    def num_rows(self) -> int:
        """Positions that are computed."""
        return self.length + len(self.drafts)


class Move(msgspec.Struct, frozen=True, gc=False):
    """Keys and values of a sequence that was preempted, in these blocks of the card and of the
    host; out of the card also its recurrent state, to a slot of the prefixes'.
    """

    seq: int
    block_ids: tuple[int, ...]
    host_ids: tuple[int, ...]
    slot: int = NO_SLOT


class Moves(msgspec.Struct, frozen=True, gc=False):
    """What moves before a step: first out of the card, then back."""

    out: tuple[Move, ...] = ()
    back: tuple[Move, ...] = ()


NO_MOVES: Final = Moves()


class StepPlan(msgspec.Struct, frozen=True):
    """One forward pass, for one chunk per sequence at most.

    `ended` names sequences whose runner state may go before it starts: neither this plan nor a
    later one names them again. The plan before may, while it is in flight. A drafter on the host
    takes the step in if it `takes_in`; one on a card takes in every step.
    """

    step: int
    started: tuple[SequenceStart, ...]
    chunks: tuple[Chunk, ...]
    ended: tuple[int, ...]
    moves: Moves = NO_MOVES
    takes_in: bool = True


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """The new tokens of one sequence; `logprobs` is empty or one per id. No ids mean that the
    token is not there yet: its position comes again in the next plan.

    Keys and values of accepted drafts, the leading ids behind which there is another one, are
    computed. Those of other ids are not: the next chunk starts with them. If that
    chunk is planned already, it counts on exactly one, or may move.
    """

    seq: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class DraftTiming(NamedTuple):
    """A pass that drafted behind `num_sequences`, `depth` tokens each, and the `seconds` that it
    took, which are some of the step in whose result it stands. On a host also one of depth 0, which
    only takes rows in.
    """

    num_sequences: int = 0
    depth: int = 0
    seconds: float = 0.0


NO_DRAFTING: Final = DraftTiming()


class StepResult(msgspec.Struct, frozen=True):
    """The outcome of a plan: one `Sampled` for each sampling chunk, unless the sequence failed, or
    one of `embeddings` if it embeds.

    Answers for sequences that have ended meanwhile are ignored, and may be missing.

    `failed` pairs a sequence with the reason (e.g. out of memory); it ends with an error. Those of
    `ungrammatical` are among them: their grammar allows no token. `drafting` is the draft pass that
    the time to this result covers: a card's behind the step before, a host's behind this one.
    """

    step: int
    sampled: tuple[Sampled, ...]
    failed: tuple[tuple[int, str], ...] = ()
    ungrammatical: frozenset[int] = frozenset()
    embeddings: tuple[tuple[int, bytes], ...] = ()
    drafting: DraftTiming = NO_DRAFTING
