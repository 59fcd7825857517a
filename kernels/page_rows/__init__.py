"""Blocks of keys and values to and from rows that hold a block each, with their checksums.

A block has one piece for the keys and one for the values of each layer. Owns the checked entries.
Must not know what is copied when, nor where a row goes.
"""

from torch import Tensor

from kernels.choose import uses_triton
from kernels.page_rows import reference
from kernels.page_rows.reference import SUM_WORDS

__all__ = ["copy_rows", "num_sums"]


def num_sums(words: Tensor) -> int:
    """How many sums `copy_rows` gives for each block of `words` [planes, blocks, words]."""
    planes, _, size = words.shape
    return int(planes * -(-size // SUM_WORDS))


def copy_rows(
    words: Tensor, block_ids: Tensor, rows: Tensor, weights: Tensor, sums: Tensor, *, is_load: bool
) -> None:
    """Copy blocks `block_ids` int32 [n] of `words` int64 [planes, blocks, words] to the leading
    words of `rows` int64 [n, row words], plane after plane; from them if `is_load`.

    `sums` int64 [n, `num_sums`] become sums, modulo 2^64, of words times `weights` int64 [planes x
    words]; together they are the checksum of a row. The last dimension of each is contiguous, and
    all of `words`. Ids must name blocks, each once in a load. Raises `ValueError`.
    """
    planes, _, size = words.shape
    count = block_ids.shape[0]
    shapes = words.shape, block_ids.shape, rows.shape, weights.shape, sums.shape
    if rows.shape[0] != count or rows.shape[1] < planes * size:
        raise ValueError(f"shapes that do not fit: {shapes}")
    if weights.shape[0] < planes * size or sums.shape != (count, num_sums(words)):
        raise ValueError(f"shapes that do not fit: {shapes}")
    if not words.is_contiguous() or {each.stride(-1) for each in (rows, weights, sums)} != {1}:
        raise ValueError(f"strides of {shapes}")
    if uses_triton(words):
        from kernels.page_rows import kernel

        kernel.copy_rows(words, block_ids, rows, weights, sums, is_load=is_load)
    else:
        reference.copy_rows(words, block_ids, rows, weights, sums, is_load=is_load)
