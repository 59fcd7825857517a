"""The least time that a card needs, from the shape of the model alone.

Owns bytes and operations: every weight and every cached key and value of a step is read once, and
every multiplication done once. In a mixture only the experts count that the rows of a step chose.
Measures nothing; a faster result would have skipped work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from workers.engine.load.quantize import StoredFormat
from workers.engine.models.description import Attention, Experts, Latent, ModelDescription


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The ceilings of a card: bytes/s of a large copy (read + written), and FLOP/s of a large
    matrix product in 16 bits and in fp8.
    """

    bandwidth: float
    flops: float
    fp8_flops: float


_INT4_BYTES: Final = 0.5 + 3 / 128
"""Bytes per weight, with its share of a group's scale and zero point."""


_MXFP4_BYTES: Final = 0.5 + 1 / 32


def distinct_experts(num_experts: int, num_active: int, rows: int) -> float:
    """How many experts `rows` rows choose together, on average, if each chooses `num_active` of
    them independently and uniformly.
    """
    return num_experts * (1 - (1 - num_active / num_experts) ** rows)


@dataclass(frozen=True, slots=True)
class EngineFloor:
    """Times in seconds for a shape on a card. `fp8`: layers in 8 bits, cache in 16.
    `fp8_prompts`: only prompts in 8 bits. `int4`: layers in 4 bits, multiplied in 16. `head`: as in
    `[[workers]]`.
    """

    config: ModelDescription
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
        """Bytes of all weights, the embedding left out."""
        mixtures = self.config.mixtures
        return int(self._moved(mixtures[0].num_experts if mixtures else 0))

    def step(self, batch: int, context_tokens: int, experts: float | None = None) -> float:
        """One decode step over `context_tokens` cached tokens of all sequences. `experts`: how many
        of each mixture its rows chose, on average; None: as many as uniform choices have.
        """
        moved = self._weights_for(batch, experts) + self._cached_bytes(batch, context_tokens)
        moved += 2 * batch * self.config.state_bytes(2)  # read and written
        return max(moved / self.card.bandwidth, self._compute(batch, batch, self.fp8))

    def prefill(self, lengths: Sequence[int], cached: int = 0) -> float:
        """Prompts of `lengths` tokens, each after `cached` ones, up to their first tokens."""
        attention = sum(self._attended(each, lengths, cached) for each in self.config.attentions)
        is_fp8 = self.fp8 or self.fp8_prompts
        compute = self._compute(sum(lengths), len(lengths), is_fp8) + attention / self.card.flops
        moved = self._weights_for(sum(lengths))
        moved += self._cached_bytes(len(lengths), len(lengths) * cached)
        return max(moved / self.card.bandwidth, compute)

    def call(
        self,
        prompts: Sequence[int],
        outputs: Sequence[int],
        cached: int = 0,
        experts: float | None = None,
    ) -> float:
        """All prompts at once, then decode steps until the last sequence ends; `experts` as in
        `step`.
        """
        total = self.prefill([length - cached for length in prompts], cached)
        for step in range(1, max(outputs)):
            live = [prompt for prompt, num in zip(prompts, outputs, strict=True) if num > step]
            total += self.step(len(live), sum(live) + step * len(live), experts)
        return total

    def _weights_for(self, rows: int, experts: float | None = None) -> float:
        """Bytes of weights that a step of `rows` rows reads."""
        if experts is None and self.config.mixtures:
            routing = self.config.mixtures[0].routing
            experts = distinct_experts(routing.num_experts, routing.num_active, rows)
        return self._moved(experts or 0.0)

    def _moved(self, experts: float) -> float:
        """The bytes of all weights, with `experts` experts of each mixture."""
        each = _INT4_BYTES if self.int4 else 1 if self.fp8 else 2
        by_expert = _MXFP4_BYTES if self.config.stored is StoredFormat.MXFP4 else each
        head = {"fp8": 1, "int4": _INT4_BYTES}.get(self.head, 2)
        sizes = [self._expert_weights(mlp) for mlp in self.config.mixtures]
        stacks = sum(mlp.num_experts * self._expert_weights(mlp) for mlp in self.config.mixtures)
        moved = (self.layer_weights - stacks) * each + head * self.head_weights
        sides = 2 * self.config.side_width * self.config.hidden_size
        return moved + experts * sum(sizes) * by_expert + sides

    def _expert_weights(self, mlp: Experts) -> int:
        return 3 * mlp.width * self.config.hidden_size

    def _cached_bytes(self, batch: int, tokens: int) -> int:
        """Bytes of the keys and values that `batch` sequences read of `tokens` cached tokens; a
        window bounds the tokens of each sequence.
        """
        mixers = self.config.attentions
        seen = [min(tokens, batch * mixer.window) if mixer.window else tokens for mixer in mixers]
        read = [
            mixer.head_dim  # a latent row is key and value
            if isinstance(mixer, Latent)
            else 2 * mixer.num_kv_heads * mixer.head_dim
            for mixer in mixers
        ]
        return sum([2 * numbers * count for numbers, count in zip(read, seen, strict=True)])

    def _attended(self, mixer: Attention, lengths: Sequence[int], cached: int) -> float:
        """Multiplications and additions of rows with the keys and values that they attend to."""
        pairs = sum(length * cached + length * length / 2 for length in lengths)
        if mixer.window:
            pairs = min(pairs, float(sum(lengths) * mixer.window))
        if isinstance(mixer, Latent):
            made = mixer.plain_dim + mixer.rope.dim + mixer.value_dim
            return 2 * mixer.num_heads * made * pairs
        return 4 * mixer.num_heads * mixer.head_dim * pairs

    def _compute(self, rows: int, head_rows: int, is_fp8: bool) -> float:
        layers = self.card.fp8_flops if is_fp8 else self.card.flops
        return (
            2 * self.config.active_weights * rows / layers
            + 2 * self.head_weights * head_rows / self.card.flops
        )
