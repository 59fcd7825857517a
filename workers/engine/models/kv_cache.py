"""The memory of keys and values, in blocks.

Owns its layout. Must not know which sequence owns a block: the scheduler's plans name the blocks.
"""

import math
import mmap

import torch
from torch import Tensor

from workers.engine.models.description import Latent, ModelDescription
from workers.engine.models.state_slots import Place


class KvCache:
    """`layers` holds (keys, values) per layer with attention, each [blocks, block_size, KV, D],
    contiguous; one that borrows has those of the layer that it reads. `memories` are all of them,
    one for each kind of heads, [layers, 2, blocks, block_size, KV, D]; `in_windows` says which
    kinds keep only their window. Of latent attention they are [layers, 1, blocks, block_size, 1,
    D], where values are a part of the keys.

    Behind the `num_blocks` that the scheduler knows lies `dummy_block`, for rows that pad a step.
    Layers that keep only their window have `num_window_blocks` blocks, and `dummy_window_block`.
    """

    def __init__(
        self,
        config: ModelDescription,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
        num_window_blocks: int = 0,
        place: Place | None = None,
    ) -> None:
        """All zeros, in memory that `place` takes; None: as torch does, and on a CPU a page takes
        the host's memory when it is first written.
        """
        owners = config.key_owners
        makers = [place for place, owner in enumerate(owners) if place == owner]
        memories = []
        layers: dict[int, tuple[Tensor, Tensor]] = {}
        for heads in config.head_sizes:
            own = [place for place in makers if config.attentions[place].sizes == heads]
            count = num_window_blocks if heads.in_window else num_blocks
            blocks = (count + 1, block_size, heads.num_kv_heads, heads.head_dim)
            shape = (len(own), 1 if config.is_latent else 2, *blocks)
            memory = place(shape, dtype).zero_() if place else _zeros(shape, dtype, device)
            memories.append(memory)
            for layer, sides in zip(own, memory, strict=True):
                mixer = config.attentions[layer]
                values = sides[0, ..., : mixer.rank] if isinstance(mixer, Latent) else sides[1]
                layers[layer] = sides[0], values
        self.memories: tuple[Tensor, ...] = tuple(memories)
        self.num_blocks = num_blocks
        self.dummy_block = num_blocks
        self.in_windows = tuple([heads.in_window for heads in config.head_sizes])
        self.has_windows = any(self.in_windows)
        self.num_window_blocks = self.dummy_window_block = num_window_blocks
        self.block_size = block_size
        self.layers: tuple[tuple[Tensor, Tensor], ...] = tuple([layers[owner] for owner in owners])

    @property
    def memory(self) -> Tensor:
        """The memory of a network whose layers all have the same heads."""
        (memory,) = self.memories
        return memory

    def keys_of(self, kind: int) -> Tensor:
        """The keys of some layer of a kind, in the order of `ModelDescription.head_sizes`."""
        return self.memories[kind][0, 0]

    def num_bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum([memory.nbytes for memory in self.memories])


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return _untouched(shape, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)


def _untouched(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros as the kernel maps them. `torch.zeros` writes them: 2.1 GB of the built-in model's
    262,144 tokens, of which a conversation uses a few MB, and 2.4 s of its start.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    # A mapping has at least one byte; a network without attention has no keys.
    pages = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8)[:num_bytes].view(dtype).view(shape)
