"""The description of a kernel benchmark: inputs, variants, the right answer, the least work.

Owns the data that a module of this package yields from `cases(device)`, and the comparison of
answers. Must not know any kernel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Accept = Callable[[Any, Any], str | None]
"""(answer, expected) -> the error of the answer, or None."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One implementation: a configuration of ours, or a peer (a library's operation).

    A peer that computes something else, but whose time is of interest, is not `checked`; one that
    rounds differently has an `accept` of its own.
    """

    name: str
    run: Callable[..., Any]
    peer: bool = False
    checked: bool = True
    accept: Accept | None = None


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One operation at one size.

    `make()` draws fresh random inputs on the device; `expected(*inputs)` is the answer in float64
    or float32, `run(*inputs)` that of a variant. A run may overwrite its inputs: checks give each a
    copy. `moved_bytes` are the fewest bytes that one call must read and write, `flops` the matrix
    operations (counted as bf16's, at 2 per multiply and add). Of a chain each answer is, while it
    is timed, the first input of the next call, as layers follow each other.
    """

    name: str
    make: Callable[[], tuple[Any, ...]]
    variants: Sequence[Variant]
    expected: Callable[..., Any]
    moved_bytes: int
    flops: int
    accept: Accept
    is_chain: bool = False


def within(tolerance: float) -> Accept:
    """Accept ||answer - expected|| <= tolerance x ||expected||, of a tensor or of each of several.

    NaN and infinity are never accepted.
    """

    def accept(answer: Any, expected: Any) -> str | None:  # noqa: ANN401
        for part, right in zip(_parts(answer), _parts(expected), strict=True):
            if part.shape != right.shape:
                return f"shape {tuple(part.shape)}, expected {tuple(right.shape)}"
            error = float((part.double() - right.double()).norm() / right.double().norm())
            if not error <= tolerance:
                return f"error {error:.2e} > {tolerance:.0e}"
        return None

    return accept


def equal(answer: Any, expected: Any) -> str | None:  # noqa: ANN401
    """Accept only equal numbers, of a tensor or of each of several."""
    for part, right in zip(_parts(answer), _parts(expected), strict=True):
        if not torch.equal(part, right):
            return f"{int((part != right).sum())} of {right.numel()} differ"
    return None


def copied(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs with tensors of their own."""
    return tuple(item.clone() if isinstance(item, Tensor) else item for item in inputs)


def _parts(value: Any) -> Sequence[Tensor]:  # noqa: ANN401
    return (value,) if isinstance(value, Tensor) else value
