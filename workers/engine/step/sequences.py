"""What the runner keeps of every sequence: its tokens, and how it is sampled.

Owns the token pool. Must not know blocks or the network; preemption does not touch this state.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from protocol.sampling import SamplingParams
from workers.scheduler import SequenceStart


class SequenceState:
    """One sequence. `tokens` are the prompt and all outputs; the first `num_prompt` are prompt."""

    __slots__ = ("num_prompt", "sampling", "seed", "seq", "tokens")

    def __init__(self, start: SequenceStart) -> None:
        self.seq = start.seq
        self.tokens = array("I", start.token_ids)
        self.num_prompt = start.num_prompt
        self.sampling: SamplingParams = start.sampling
        self.seed = start.seed


class SequencePool:
    """The sequences that the scheduler has started and not ended."""

    def __init__(self) -> None:
        self.states: dict[int, SequenceState] = {}
        self.tokens: dict[int, array[int]] = {}

    def __len__(self) -> int:
        return len(self.states)

    def start(self, starts: Iterable[SequenceStart]) -> None:
        for start in starts:
            state = SequenceState(start)
            self.states[start.seq] = state
            self.tokens[start.seq] = state.tokens

    def end(self, seqs: Iterable[int]) -> None:
        """Forget sequences; a sequence that never started is no fault (it was aborted first)."""
        for seq in seqs:
            self.states.pop(seq, None)
            self.tokens.pop(seq, None)
