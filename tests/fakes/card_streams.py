"""A card's streams and page-locked memory, pretended on a CPU: what is launched is done at once.

Owns the stand-ins. So copies that are written for a card run, except for what is concurrent there.
"""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor


class _Stream:
    def __init__(self, device: torch.device) -> None:
        pass

    def wait_event(self, event: "_Event") -> None:
        assert event.is_recorded


class _Event:
    def __init__(self) -> None:
        self.is_recorded = False

    def record(self) -> None:
        self.is_recorded = True

    def synchronize(self) -> None:
        """What was launched is done."""

    def query(self) -> bool:
        return self.is_recorded


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `torch.cuda` be of the CPU until the test ends."""
    empty = torch.empty

    def unlocked(*shape: object, pin_memory: bool = False, **given: object) -> Tensor:
        del pin_memory
        return empty(*shape, **given)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", unlocked)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
