"""Memory that runs out in the middle of a step: at any call of the engine that takes some.

Owns the places, and the words of those who run out. Must not know plans or sequences.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest
import torch

from workers.engine.graphs import decode_step, device_steps, mixed_step
from workers.engine.models.network import Network
from workers.engine.step import batch, draws, penalties, sampler, table_updates, tables


def _name_of(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


_CALLS: Final[tuple[tuple[ModuleType, tuple[str, ...]], ...]] = (
    (batch, ("to_device",)),
    (decode_step, ("pick", "send_into")),
    (table_updates, ("to_device",)),
    (mixed_step, ("send_into",)),
    (penalties, ("count", "mark", "penalise", "send_columns", "to_device")),
    (draws, ("send_into",)),
    (sampler, ("logprobs", "pick", "to_device")),
    (tables, ("write_tables",)),
)
_OF_THE_MODEL: Final = ("embed_last", "forward", "logits")

FETCH: Final = "device_steps.fetch"
"""Behind all else: what a step sampled cannot be read."""

PLACES: Final = (
    *(f"model.{name}" for name in _OF_THE_MODEL),
    *(f"{_name_of(module)}.{name}" for module, names in _CALLS for name in names),
)
"""Where a step may be repeated."""


class Shortage(NamedTuple):
    """`place` finds memory `after` times, then none for `lasts` calls. The shortages of one place
    follow each other.
    """

    place: str
    after: int
    lasts: int


class ScarceMemory:
    """`struck` are the places where memory ran out, in their order."""

    def __init__(self, shortages: Sequence[Shortage]) -> None:
        self.struck: list[str] = []
        self._coming: dict[str, deque[bool]] = {}
        for place, after, lasts in shortages:
            coming = self._coming.setdefault(place, deque())
            coming.extend([False] * after + [True] * lasts)

    def limit(self, model: Network, patch: pytest.MonkeyPatch) -> None:
        """Until the patches are undone."""
        for name in _OF_THE_MODEL:
            self._patch(model, name, f"model.{name}", patch)
        for module, names in (*_CALLS, (device_steps, ("fetch",))):
            for name in names:
                self._patch(module, name, f"{_name_of(module)}.{name}", patch)

    def _patch(self, owner: object, name: str, place: str, patch: pytest.MonkeyPatch) -> None:
        if place in self._coming:
            patch.setattr(owner, name, partial(self._called, place, getattr(owner, name)))

    def _called(self, place: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        coming = self._coming[place]
        if coming and coming.popleft():
            self.struck.append(place)
            # The words of torch for its own allocations, and of Triton where it loads a kernel.
            if len(self.struck) % 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
            raise RuntimeError("Triton Error [CUDA]: out of memory")
        return call(*args, **named)
