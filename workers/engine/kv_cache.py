"""The memory of keys and values, in blocks.

Owns its layout and size. Must not know who owns which block: the scheduler's plans say.
"""

from typing import Final

import torch
from torch import Tensor

from protocol.errors import ConfigError
from workers.engine.model_config import Qwen3Config

CPU_CONTEXTS: Final = 4
"""On a CPU more than a few full windows only cost memory: nobody serves dozens of them there."""

CPU_SHARE: Final = 0.25
CUDA_SHARE: Final = 0.9


class KvCache:
    """`layers` holds (keys, values) per layer, each [blocks, block_size, KV, D], contiguous.

    Behind the `num_blocks` that the scheduler knows lies `dummy_block`, for rows that pad a step.
    """

    def __init__(
        self,
        config: Qwen3Config,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Every page is written at once, so that resident memory does not grow with use."""
        blocks = (num_blocks + 1, block_size, config.num_kv_heads, config.head_dim)
        self._memory = torch.zeros((config.num_layers, 2, *blocks), dtype=dtype, device=device)
        self.num_blocks = num_blocks
        self.dummy_block = num_blocks
        self.block_size = block_size
        self.layers: tuple[tuple[Tensor, Tensor], ...] = tuple(
            (layer[0], layer[1]) for layer in self._memory
        )


def kv_token_bytes(config: Qwen3Config, dtype: torch.dtype) -> int:
    """What one token takes in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


def num_kv_blocks(
    *, wanted_tokens: int | None, budget_bytes: int, token_bytes: int, block_size: int
) -> int:
    """Blocks for `wanted_tokens` (rounded up), or for the whole budget if None.

    Raises `ConfigError` if the budget does not hold them.
    """
    fitting = budget_bytes // (token_bytes * block_size)
    if wanted_tokens is None:
        if fitting < 1:
            raise ConfigError(
                f"no memory is left for keys and values: {budget_bytes} bytes are free, a block "
                f"takes {token_bytes * block_size}; free some or take a smaller model"
            )
        return fitting
    blocks = -(-wanted_tokens // block_size)
    if blocks > fitting:
        raise ConfigError(
            f"kv_tokens = {wanted_tokens} needs {blocks * block_size * token_bytes} bytes, but "
            f"{budget_bytes} are free: at most kv_tokens = {fitting * block_size} fits"
        )
    return blocks
