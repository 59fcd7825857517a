"""Whether an engine sleeps by itself, and what it needs for that from its start.

Owns that choice, and which tensors are weights. Must not know how memory is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from config import WorkerConfig
from workers.engine.drafting.dflash import DFlash
from workers.engine.drafting.drafter import Drafter
from workers.engine.drafting.eagle3 import Eagle3Cell
from workers.engine.drafting.mtp import MtpCell
from workers.engine.drafting.recurrent import RecurrentDrafter
from workers.engine.drafting.weights import DraftingHead
from workers.engine.memory.budget import host_room
from workers.engine.models.network import Network
from workers.engine.models.weights import ModelWeights
from workers.engine.sleep.card_pages import CardPages, DriverRefusalError
from workers.engine.sleep.device_sleep import DeviceSleep, NoSleep
from workers.engine.sleep.kept_rows import KeptRows
from workers.engine.sleep.pages import Pages

if TYPE_CHECKING:
    from workers.engine.runner import ModelRunner


_DRAFTERS: Final = (DFlash, DraftingHead, Eagle3Cell, MtpCell, RecurrentDrafter)


def sleep_of(
    config: WorkerConfig, device: torch.device, *, has_ranks: bool
) -> DeviceSleep | NoSleep:
    """The sleep of the engine of a worker. One that is always resident takes its memory as torch
    does.
    """
    if config.residency != "on-demand":
        return NoSleep()
    if has_ranks:
        return NoSleep("it has several ranks")
    try:
        pages = pages_of(device)
        if pages is None:
            return NoSleep()
        return DeviceSleep(pages, device, most_bytes_of(device))
    except DriverRefusalError as error:
        return NoSleep(str(error))


def pages_of(device: torch.device) -> Pages | None:
    """What maps the memory of a device; None where nothing would become free. Raises
    `DriverRefusalError`.
    """
    if device.type != "cuda":
        return None
    if torch.cuda.get_device_properties(device).is_integrated:
        raise DriverRefusalError("the card shares the host's memory")
    torch.cuda.synchronize(device)  # its context is the current one from now on
    return CardPages(device)


def most_bytes_of(device: torch.device) -> int:
    """All memory of a card: addresses cost nothing."""
    return torch.cuda.get_device_properties(device).total_memory


def move_to(
    sleep: DeviceSleep | NoSleep,
    weights: ModelWeights | Drafter | None,
    again: Callable[[], ModelWeights | Drafter | None],
) -> None:
    """Move weights, or those of a drafter, to where they can sleep. `again` loads the same anew."""
    if weights is not None:
        sleep.adopt(tensors_of(weights), lambda: tensors_of(again()))


def begun_sleep(runner: ModelRunner) -> DeviceSleep | NoSleep:
    """The sleep of an engine that is ready, which begins to prepare."""
    sleep, drafter = runner.sleep, runner.drafter
    if isinstance(sleep, NoSleep):
        return sleep
    caches = [runner.cache]
    if drafter is not None and drafter.cache is not None:
        caches.append(drafter.cache)
    why = sleep.begin(KeptRows(caches, runner.kept.prefixes), host_room)
    return NoSleep(why) if why else sleep


def tensors_of(weights: Any) -> Iterator[Tensor]:  # noqa: ANN401 - weights are nested in many ways
    """All tensors of weights, or of a drafter, in an order that is always the same. A drafter's
    include what it shares with its target, and what it computes from weights once.
    """
    if isinstance(weights, Tensor):
        yield weights
    elif isinstance(weights, tuple):
        for part in weights:
            yield from tensors_of(part)
    elif is_dataclass(weights):
        for field in fields(weights):
            yield from tensors_of(getattr(weights, field.name))
    elif isinstance(weights, Network):
        yield from tensors_of(weights.weights)
    elif isinstance(weights, _DRAFTERS):
        for part in vars(weights).values():
            yield from tensors_of(part)
