"""Triton's interpreter that refuses what lies outside a launch's tensors.

Owns the check. A kernel on a card that reads a little behind a tensor mostly finds another one, and
no test sees it, until the memory behind it is not mapped and the process ends.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter


class OutOfBoundsError(Exception):
    """An address of a load or store that no tensor of the launch holds."""


class Bounds:
    """The memory of one launch's tensors, by storage: views may share one."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        found = set()
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                found.add((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        self._spans = sorted(found)
        self._begins = [begin for begin, _ in self._spans]

    def check(self, what: str, addresses: Any, mask: Any, size: int) -> None:
        """Raises `OutOfBoundsError` unless all active addresses, of `size` bytes, lie in one."""
        chosen = np.broadcast_to(np.asarray(mask).astype(bool), np.shape(addresses))
        active = np.asarray(addresses)[chosen]
        if not active.size:
            return
        low, high = int(active.min()), int(active.max()) + size
        at = bisect_right(self._begins, low) - 1
        if at >= 0 and high <= self._spans[at][1]:
            return
        raise OutOfBoundsError(f"{what} of [{low:#x}, {high:#x}) outside of {self._spans}")


_BESIDE: list[torch.Tensor] = []
"""Memory whose addresses a launch's tensors hold."""


@contextmanager
def reached(*tensors: torch.Tensor) -> Iterator[None]:
    """Launches may reach these by addresses that they read."""
    _BESIDE.extend(tensors)
    try:
        yield
    finally:
        del _BESIDE[-len(tensors) :]


def bound() -> None:
    """Check all launches of this process from now on."""
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    current: list[Bounds] = [Bounds(())]
    begin = executor._init_args_hst
    load, store = builder.create_masked_load, builder.create_masked_store

    @wraps(begin)
    def begun(self: Any, args: Any, kwargs: Any) -> Any:
        found = begin(self, args, kwargs)
        current[0] = Bounds([*found[0], *found[1].values(), *_BESIDE])
        return found

    def checked(what: str, run: Callable[..., Any], mask_at: int) -> Callable[..., Any]:
        @wraps(run)
        def call(self: Any, ptrs: Any, *rest: Any) -> Any:
            size = ptrs.get_element_ty().primitive_bitwidth // 8
            current[0].check(what, ptrs.data, rest[mask_at].data, size)
            return run(self, ptrs, *rest)

        return call

    executor._init_args_hst = begun
    builder.create_masked_load = checked("a load", load, 0)
    builder.create_masked_store = checked("a store", store, 1)
