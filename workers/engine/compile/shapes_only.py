"""Fast shape inference for torch's operations over meta tensors.

Owns the result shapes of the operations of a step. torch infers nearly all shapes itself, but for
most operations it first imports its compiler, which takes a second. Operations that are missing
here take that slow and correct path. Must not know steps.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def _linear(x: Tensor, weight: Tensor, *_: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _scaled_mm(x: Tensor, weight: Tensor, *, out_dtype: torch.dtype, **_: object) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1], dtype=out_dtype)


def _embedding(ids: Tensor, weight: Tensor, **_: object) -> Tensor:
    return weight.new_empty(*ids.shape, weight.shape[1])


def _with_number(x: Tensor, number: object) -> Tensor | None:
    """The result of x plus an integer, which keeps x's dtype."""
    return x.new_empty(x.shape) if isinstance(number, int) else None


def _clamped(x: Tensor, min: object = None, max: object = None) -> Tensor | None:  # noqa: A002
    bounds = [bound for bound in (min, max) if bound is not None]
    is_kept = bounds and all(isinstance(bound, int) for bound in bounds)
    return x.new_empty(x.shape) if is_kept else None


def _compared(x: Tensor, number: object) -> Tensor | None:
    return x.new_empty(x.shape, dtype=torch.bool) if isinstance(number, int) else None


def _where(chosen: Tensor, first: object, second: object) -> Tensor | None:
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return None
    if not chosen.shape == first.shape == second.shape:
        return None
    return first.new_empty(first.shape, dtype=torch.promote_types(first.dtype, second.dtype))


def _indexed(x: Tensor, index: object) -> Tensor | None:
    if not isinstance(index, Tensor) or index.dtype == torch.bool:
        return None
    return x.new_empty(*index.shape, *x.shape[1:])


def _log_softmax(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:  # noqa: ARG001
    return x.new_empty(x.shape, dtype=dtype or x.dtype)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    first, *others = tensors
    alike = all(one.shape[1:] == first.shape[1:] and one.dtype == first.dtype for one in others)
    if dim or not alike:
        return None
    return first.new_empty(sum(one.shape[0] for one in tensors), *first.shape[1:])


def _in_place(x: Tensor, *_: object, **__: object) -> Tensor:
    return x


# None: torch infers the shape.
_ANSWERS: Final[dict[str, Callable[..., Tensor | None]]] = {
    "linear": _linear,
    "_scaled_mm": _scaled_mm,
    "embedding": _embedding,
    "add": _with_number,
    "clamp": _clamped,
    "__eq__": _compared,
    "where": _where,
    "__getitem__": _indexed,
    "log_softmax": _log_softmax,
    "cat": _cat,
    "add_": _in_place,
    "addmm_": _in_place,
    "clamp_": _in_place,
    "index_copy_": _in_place,
    "mul_": _in_place,
    "sigmoid_": _in_place,
}


@final
class ShapesOnly(TorchFunctionMode):
    """`with ShapesOnly():` tensors on the meta device are computed with, quickly."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        answer = _ANSWERS.get(func.__name__)
        first = args[0][0] if func is torch.cat else args[0] if args else None
        if answer is not None and isinstance(first, Tensor) and first.is_meta:
            found = answer(*args, **kwargs)
            if found is not None:
                return found
        return func(*args, **kwargs)
