"""The least time that a card needs, from the shape of the model alone.

Owns bytes and operations: every weight and every cached key and value of a step is read once, and
every multiplication done once. Measures nothing; a faster result would have skipped work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from workers.engine.models.description import Attention, ModelConfig


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The ceilings of a card: bytes/s of a large copy (read + written), and FLOP/s of a large
    matrix product in 16 bits and in fp8.
    """

    bandwidth: float
    flops: float
    fp8_flops: float


CEILINGS: Final = {"NVIDIA H200": Ceiling(4.26e12, 790e12, 1_401e12)}
"""Measured with torch 2.11 (cu130) on random data. Other cards have no floor."""


_INT4_BYTES: Final = 0.5 + 3 / 128
"""Bytes per weight, with its share of a group's scale and zero point."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Times in seconds for a shape on a card. `fp8`: layers in 8 bits, cache in 16.
    `fp8_prompts`: only prompts in 8 bits. `int4`: layers in 4 bits, multiplied in 16. `head`: as in
    `[[workers]]`.
    """

    config: ModelConfig
    card: Ceiling
    fp8: bool = False
    fp8_prompts: bool = False
    int4: bool = False
    head: str = "auto"

    @property
    def layer_weights(self) -> int:
        """Parameters of all layers."""
        return self.config.layer_weights

    @property
    def head_weights(self) -> int:
        """Parameters of the head. A step reads only a few rows of an untied embedding."""
        return self.config.vocab_size * self.config.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a step reads."""
        each = _INT4_BYTES if self.int4 else 1 if self.fp8 else 2
        head = {"fp8": 1, "int4": _INT4_BYTES}.get(self.head, 2)
        return int(self.layer_weights * each + head * self.head_weights)

    def step(self, batch: int, context_tokens: int) -> float:
        """One decode step over `context_tokens` cached tokens of all sequences."""
        moved = self.weight_bytes + self._cached_bytes(batch, context_tokens)
        moved += 2 * batch * self.config.state_bytes(2)  # read and written
        return max(moved / self.card.bandwidth, self._compute(batch, batch, self.fp8))

    def prefill(self, lengths: Sequence[int], cached: int = 0) -> float:
        """Prompts of `lengths` tokens, each after `cached` ones, up to their first tokens."""
        attention = sum(self._attended(each, lengths, cached) for each in self.config.attentions)
        is_fp8 = self.fp8 or self.fp8_prompts
        compute = self._compute(sum(lengths), len(lengths), is_fp8) + attention / self.card.flops
        moved = self.weight_bytes + self._cached_bytes(len(lengths), len(lengths) * cached)
        return max(moved / self.card.bandwidth, compute)

    def call(self, prompts: Sequence[int], outputs: Sequence[int], cached: int = 0) -> float:
        """All prompts at once, then decode steps until the last sequence ends."""
        total = self.prefill([length - cached for length in prompts], cached)
        for step in range(1, max(outputs)):
            live = [prompt for prompt, num in zip(prompts, outputs, strict=True) if num > step]
            total += self.step(len(live), sum(live) + step * len(live))
        return total

    def _cached_bytes(self, batch: int, tokens: int) -> int:
        """Bytes of the keys and values that `batch` sequences read of `tokens` cached tokens; a
        window bounds the tokens of each sequence.
        """
        mixers = self.config.attentions
        seen = [min(tokens, batch * mixer.window) if mixer.window else tokens for mixer in mixers]
        heads = self.config.attention
        return 4 * heads.num_kv_heads * heads.head_dim * sum(seen)

    def _attended(self, mixer: Attention, lengths: Sequence[int], cached: int) -> float:
        """Multiplications and additions of rows with the keys and values that they attend to."""
        pairs = sum(length * cached + length * length / 2 for length in lengths)
        if mixer.window:
            pairs = min(pairs, float(sum(lengths) * mixer.window))
        return 4 * mixer.num_heads * mixer.head_dim * pairs

    def _compute(self, rows: int, head_rows: int, is_fp8: bool) -> float:
        layers = self.card.fp8_flops if is_fp8 else self.card.flops
        return (
            2 * self.layer_weights * rows / layers
            + 2 * self.head_weights * head_rows / self.card.flops
        )
