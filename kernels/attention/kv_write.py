"""Putting new keys and values into their slots of the paged cache.

Owns the checked entry. A fused kernel for CUDA tensors joins here, beside its reference.
"""

from torch import Tensor

from kernels.attention import reference_kv_write as reference

__all__ = ["kv_write"]


def kv_write(
    keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    """Write keys and values [T, H, D] to `slots` [T] (int64, distinct) of the caches.

    key_cache and value_cache [blocks, block_size, H, D] are contiguous; a slot is
    block x block_size + offset. Slots out of range are the caller's fault: torch raises on the
    CPU and asserts on CUDA. Raises `ValueError` for shapes that do not fit.
    """
    if keys.shape != values.shape or keys.shape[1:] != key_cache.shape[2:]:
        raise ValueError(f"keys {tuple(keys.shape)} for a cache {tuple(key_cache.shape)}")
    if slots.shape[0] != keys.shape[0]:
        raise ValueError(f"{slots.shape[0]} slots for {keys.shape[0]} tokens")
    reference.kv_write(keys, values, key_cache, value_cache, slots)
