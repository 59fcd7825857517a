"""The sizes of the checks: one set for a card, and one that a CPU computes in seconds, with which
the checks themselves are tested.
"""

from dataclasses import dataclass
from typing import Any, Final

QWEN3_06B: Final[dict[str, Any]] = {
    "dtype": "bfloat16",
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40_960,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "vocab_size": 151_936,
}


@dataclass(frozen=True)
class Scale:
    """Lengths are in tokens. `small_pool` and `churn_pool` are too few blocks, on purpose."""

    shape: dict[str, Any]
    std: float
    kv_tokens: int
    prompts: tuple[int, ...]
    num_outputs: int
    budgets: tuple[int, ...]
    small_pool: int
    churn_requests: int
    churn_outputs: int
    churn_concurrency: int
    churn_pool: int
    prefix_length: int
    timed_steps: int
    timed_prompt: int


CARD: Final = Scale(
    shape=QWEN3_06B,
    std=0.02,
    kv_tokens=65_536,
    prompts=(1, 2, 31, 33, 64, 100, 200, 300),
    num_outputs=64,
    budgets=(16, 64, 1024),
    small_pool=13,
    churn_requests=128,
    churn_outputs=192,
    churn_concurrency=64,
    churn_pool=200,
    prefix_length=256,
    timed_steps=50,
    timed_prompt=16_384,
)

TINY: Final = Scale(
    shape={"dtype": "bfloat16", "tie_word_embeddings": True},
    std=0.2,
    kv_tokens=4096,
    prompts=(1, 2, 31, 33, 64),
    num_outputs=40,
    budgets=(16, 64),
    small_pool=5,
    churn_requests=12,
    churn_outputs=120,
    churn_concurrency=8,
    churn_pool=12,
    prefix_length=64,
    timed_steps=3,
    timed_prompt=300,
)
