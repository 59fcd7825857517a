"""Plain torch cache write; the CPU path."""

from torch import Tensor


def kv_write(
    keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    """See `kernels.attention.kv_write.kv_write`."""
    slot_shape = (-1, *key_cache.shape[2:])
    key_cache.view(slot_shape).index_copy_(0, slots, keys)
    value_cache.view(slot_shape).index_copy_(0, slots, values)
