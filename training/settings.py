"""Sizes of the model and of its training: the real ones and those of a smoke run.

Owns every number that a person may want to change.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Shape:
    """The network, in the terms of a Qwen3 config."""

    hidden: int = 256
    inner: int = 768
    num_layers: int = 8
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 32
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6
    context_length: int = 65_536


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """One run. A batch is `rows_per_batch` rows of `row_length` tokens; `reserve_s` of the given
    time is kept for evaluation and export; `max_steps` ends a smoke run.

    `peak` scales the learning rates: below 1 where a run starts from trained weights.

    From the share `long_from` of the run on, one long row replaces `rows_per_long` rows of every
    `long_every`-th batch, with documents from `long_least` tokens to nearly the whole row.
    """

    shape: Shape = Shape()
    vocab_size: int = 4096
    row_length: int = 4096
    rows_per_batch: int = 32
    rows_per_shard: int = 64
    rows_per_long: int = 6
    long_rows_per_shard: int = 8
    long_from: float = 0.4
    long_every: int = 3
    long_least: int = 4096
    sample_streams: int = 16
    sample_examples: int = 1200
    cases_per_skill: int = 100
    long_cases: int = 64
    long_case_tokens: int = 15_500
    max_new_tokens: int = 512
    muon_lr: float = 0.02
    adam_lr: float = 0.004
    weight_decay: float = 0.02
    warm_up: float = 0.01
    decay: float = 0.6
    z_loss: float = 1e-4
    peak: float = 1.0
    skip_share: float = 0.15
    skip_most: int = 65_536
    reserve_s: float = 45.0
    max_steps: int | None = None

    @property
    def long_length(self) -> int:
        """Tokens of a long row."""
        return self.rows_per_long * self.row_length


FULL: Final = TrainingSettings()

FURTHER: Final = TrainingSettings(peak=0.5, long_from=0.0, long_every=2)
"""A shorter run that starts from trained weights."""

SMOKE: Final = TrainingSettings(
    shape=Shape(hidden=64, inner=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16),
    vocab_size=1024,
    row_length=512,
    rows_per_batch=4,
    rows_per_shard=4,
    rows_per_long=3,
    long_rows_per_shard=2,
    long_least=512,
    sample_streams=2,
    sample_examples=150,
    cases_per_skill=2,
    long_cases=2,
    long_case_tokens=600,
    max_new_tokens=8,
    reserve_s=1.0,
    max_steps=16,
)
"""Every stage within seconds on a CPU. The resulting model is useless."""
