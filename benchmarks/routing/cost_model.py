"""The time of a worker's steps.

Owns the arithmetic of one engine: a step costs a constant, an amount per sequence, the reading of
all contexts, and its prefill chunks, whose attention grows with their position. Must not know
queues or caches.

The default is Qwen3-8B in bf16 on one H200 under vLLM 0.26, as measured: first token of 2,048,
8,192 and 32,768 cold tokens after 51.6, 216 and 1,254 ms (here 51.5, 215 and 1,254); a decode step
of 1, 64 and 256 short sequences 5.25, 7.03 and 14.83 ms (5.2, 7.5 and 14.3), of 8 sequences of 16k
context 10.04 ms (9.8).
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds per step, per sequence in it, per context token that it reads, and per prefilled
    token: `prefill_s` plus twice `attention_s` times its position.
    """

    step_s: float
    sequence_s: float
    context_s: float
    prefill_s: float
    attention_s: float

    def chunk_s(self, start: int, length: int) -> float:
        """Seconds to prefill positions [start, start + length)."""
        return self.prefill_s * length + self.attention_s * length * (2 * start + length)

    def decode_s(self, num_sequences: int, context_tokens: int) -> float:
        """Seconds of one step of `num_sequences` with `context_tokens` tokens in all."""
        return self.step_s + self.sequence_s * num_sequences + self.context_s * context_tokens

    def stretch_s(self, num_sequences: int, context_tokens: int, num_steps: int) -> float:
        """Seconds of `num_steps` decode steps in a row; each adds one token to every context."""
        growth = num_sequences * (num_steps * (num_steps - 1) // 2)
        first_s = self.decode_s(num_sequences, context_tokens)
        return num_steps * first_s + self.context_s * growth

    def steps_within(self, num_sequences: int, context_tokens: int, span_s: float) -> int:
        """The number of decode steps that end within `span_s` or contain its end: at least one."""
        first_s = self.decode_s(num_sequences, context_tokens)
        slope = self.context_s * num_sequences / 2
        if slope > 0:
            linear = first_s - slope
            root = (linear * linear + 4 * slope * span_s) ** 0.5
            estimate = (root - linear) / (2 * slope)
        else:
            estimate = span_s / first_s
        num_steps = max(1, int(estimate))
        while self.stretch_s(num_sequences, context_tokens, num_steps) < span_s:
            num_steps += 1
        return num_steps


QWEN3_8B_H200: Final = CostModel(
    step_s=5.2e-3, sequence_s=27e-6, context_s=33.3e-9, prefill_s=21.5e-6, attention_s=0.507e-9
)
