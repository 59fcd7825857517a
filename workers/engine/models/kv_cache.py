"""The memory of keys and values, in blocks.

Owns its layout. Must not know which sequence owns a block: the scheduler's plans name the blocks.
"""

import math
import mmap

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
        """All zeros. On a CPU a page takes the host's memory when it is first written."""
        heads = config.attention
        blocks = (num_blocks + 1, block_size, heads.num_kv_heads, heads.head_dim)
        shape = len(config.attentions), 2, *blocks
        if device.type == "cpu":
            self.memory = _untouched(shape, dtype)
        else:
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


def _untouched(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros as the kernel maps them. `torch.zeros` writes them: 2.1 GB of the built-in model's
    262,144 tokens, of which a conversation uses a few MB, and 2.4 s of its start.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    # A mapping has at least one byte; a network without attention has no keys.
    pages = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8)[:num_bytes].view(dtype).view(shape)
