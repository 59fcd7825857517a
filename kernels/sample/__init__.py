"""Drawing the next token from logits.

Owns the checked entries.
"""

from torch import Tensor

from kernels.choose import uses_triton
from kernels.sample import reference
from kernels.sample.reference import Draw, Draws, greedy

__all__ = ["Draw", "Draws", "best_tokens", "greedy", "logprobs", "pick"]


def pick(
    logits: Tensor,
    draws: Draws,
    positions: Tensor,
    last_token: Tensor | None = None,
    table_rows: Tensor | None = None,
) -> Tensor:
    """One token id per row, drawn, or the best one where the temperature is 0; int64 [rows],
    waiting for nothing.

    Drawn is by Gumbel-max over the kept part of softmax(logits / temperature): exact sampling from
    one uniform per (seed, position, token), so a row's token depends on nothing but its own row.

    logits [rows, vocab] of any float dtype, contiguous; positions int32 or int64 [rows]. A row
    whose logits hold a NaN or an infinity above all, or nothing but -inf, gives -1. With
    `last_token` int32 [tables], ids go to `last_token[table_rows]` too (table_rows int32 [rows];
    rows outside it go nowhere). Raises `ValueError`.
    """
    if logits.dim() != 2 or positions.shape != logits.shape[:1]:
        raise ValueError(f"logits {tuple(logits.shape)}, positions {tuple(positions.shape)}")
    if draws.temperature.shape != positions.shape or draws.seeds.shape != positions.shape:
        raise ValueError(f"draws of {draws.seeds.shape[0]} rows for {logits.shape[0]}")
    if (last_token is None) != (table_rows is None):
        raise ValueError("last_token and table_rows come together")
    if uses_triton(logits):
        from kernels.sample import kernel

        return kernel.pick(logits, draws, positions, last_token, table_rows)
    ids = reference.pick(logits, draws, positions)
    if last_token is not None and table_rows is not None:
        there = (table_rows >= 0) & (table_rows < last_token.shape[0])
        last_token[table_rows[there].long()] = ids[there].to(last_token.dtype)
    return ids


def best_tokens(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(ids int64 [rows], probabilities float32 [rows]) of logits [rows, vocab] of any float dtype,
    contiguous.

    Among equal logits the first one counts; the softmax is in float32. If a row holds a NaN or has
    no finite maximum, its probability is NaN, and its id is any id of the vocabulary. Raises
    `ValueError`.
    """
    if logits.dim() != 2 or not logits.shape[1]:
        raise ValueError(f"logits {tuple(logits.shape)}")
    if uses_triton(logits):
        from kernels.sample import best

        return best.best_tokens(logits)
    return reference.best_tokens(logits)


def logprobs(logits: Tensor, ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """(own [rows], top values [rows, n], top ids int64 [rows, n]); waits for nothing.

    The log-softmax in float32 of the raw logits [rows, vocab], of `ids` int64 [rows] (-1: of
    token 0) and of the best n = min(num_top, vocab), descending.
    """
    return reference.logprobs(logits, ids, num_top)
