"""The memory of keys and values, in blocks.

Owns its layout. Must not know which sequence owns a block: the scheduler's plans name the blocks.
"""

import torch
from torch import Tensor

from workers.engine.models.description import ModelConfig


class KvCache:
    """`layers` holds (keys, values) per layer with attention, each [blocks, block_size, KV, D],
    contiguous; `memory` all of them, [layers, 2, blocks, block_size, KV, D].

    Behind the `num_blocks` that the scheduler knows lies `dummy_block`, for rows that pad a step.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Fills all memory with zeros: every page is resident from the start."""
        heads = config.attention
        blocks = (num_blocks + 1, block_size, heads.num_kv_heads, heads.head_dim)
        shape = len(config.attentions), 2, *blocks
        self.memory = torch.zeros(shape, dtype=dtype, device=device)
        self.num_blocks = num_blocks
        self.dummy_block = num_blocks
        self.block_size = block_size
        self.layers: tuple[tuple[Tensor, Tensor], ...] = tuple(
            (layer[0], layer[1]) for layer in self.memory
        )

    def num_bytes(self) -> int:
        """Bytes of all keys and values."""
        return self.memory.nbytes
