"""What the scheduler tells the runner to compute, and what the runner answers.

Owns the frozen values that cross that seam once per step. Must not know how the choice was made
nor how it is computed. The runner keeps the tokens of every sequence itself: those of its
`SequenceStart`, then those it samples; preemption does not end that state.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from protocol.messages import TokenLogprobs
from protocol.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """A sequence that the runner has not seen before; sent in the plan of its first chunk.

    `token_ids` (u32) are the prompt and the outputs of earlier attempts; `num_prompt` of them
    are prompt. The receiver may keep the array but must not change it.
    """

    seq: int
    token_ids: array[int]
    num_prompt: int
    sampling: SamplingParams
    seed: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute positions [start, start + length) of a sequence.

    `block_ids` cover every position below start + length, in order. They may differ from those
    of the step before at any index: after a preemption, and when a block turns out to equal a
    cached one and takes its place. If `samples`, the next token is sampled from the logits of
    the last position; otherwise nothing is sampled.
    """

    seq: int
    start: int
    length: int
    block_ids: tuple[int, ...]
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass. `ended` names sequences whose runner state may go before it starts."""

    step: int
    started: tuple[SequenceStart, ...]
    chunks: tuple[Chunk, ...]
    ended: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """The new tokens of one sequence, one or several; `logprobs` is empty or one per id.

    Keys and values of these tokens count as not computed: the next chunk starts with them.
    """

    seq: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of a plan: one `Sampled` for each sampling chunk, unless the sequence failed.

    `failed` pairs a sequence with the reason (e.g. out of memory); it ends with an error.
    """

    step: int
    sampled: tuple[Sampled, ...]
    failed: tuple[tuple[int, str], ...] = ()
