"""The sum of what several cards have computed, over memory that each card writes to the others.

Owns the checked entry. Every rank pushes its part into the others' mail, raises a flag there, waits
for theirs and adds all parts itself, in the order of the ranks: so all ranks get the same bits, and
one launch replaces two barriers and a copy. Must not know how cards are joined, nor which of them
are there.
"""

from torch import Tensor

from kernels.all_reduce.mail import Mail, mail_bytes, mail_of, takes
from kernels.choose import uses_triton

__all__ = ["Mail", "add_parts", "mail_bytes", "mail_of", "takes"]


def add_parts(
    part: Tensor, residual: Tensor | None, mail: Mail, *, is_trial: bool = False
) -> Tensor:
    """The sum of all ranks' parts and `residual`, like `part`, which is contiguous.

    Parts and residual are added in float32, parts in the order of ranks, and rounded once. All
    ranks make this call alike, on one stream each, in the same order. A rank that has waited for
    about ten minutes traps: its process can use the card no longer. In a trial it waits for ten
    seconds, and its sum is wrong then. Raises `ValueError`.
    """
    if not part.is_contiguous() or not takes(part):
        raise ValueError(f"part {tuple(part.shape)} {part.dtype}, strides {part.stride()}")
    if residual is not None and (residual.shape != part.shape or residual.dtype != part.dtype):
        raise ValueError(f"part {tuple(part.shape)} {part.dtype}, residual {tuple(residual.shape)}")
    if not uses_triton(part):
        raise ValueError("parts are added on cards only; elsewhere a library adds them")
    from kernels.all_reduce import kernel

    return kernel.add_parts(part, residual, mail, is_trial=is_trial)
