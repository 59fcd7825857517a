"""Plain torch copies of blocks to and from rows."""

from typing import Final

import torch
from torch import Tensor

SUM_WORDS: Final = 1024
"""Words of a piece of a block that has a sum of its own."""


def copy_rows(
    words: Tensor, block_ids: Tensor, rows: Tensor, weights: Tensor, sums: Tensor, *, is_load: bool
) -> None:
    """See `kernels.page_rows.copy_rows`."""
    planes, _, size = words.shape
    ids, count = block_ids.long(), block_ids.shape[0]
    used = rows[:, : planes * size]
    if is_load:
        words[:, ids] = used.view(count, planes, size).transpose(0, 1)
    else:
        used.copy_(words[:, ids].transpose(0, 1).reshape(count, planes * size))
    products = (used * weights[: planes * size]).view(count, planes, size)
    each = sums.shape[1] // planes
    padded = torch.zeros(count, planes, -(-size // each) * each, dtype=torch.int64)
    padded[:, :, :size] = products
    sums.copy_(padded.view(count, planes * each, -1).sum(2))
