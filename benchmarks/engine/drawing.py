"""The experts of timed runs: drawn, not chosen by drawn weights, whose rows choose alike.

Owns the switch of a loaded network's routers, and the count of what the last step drew. Must not
know how a router draws (`kernels.experts.Drawn`), nor what is timed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import mean
from typing import NamedTuple, final

import torch

from benchmarks.engine.floor import distinct_experts
from kernels.experts import Drawn, Routing
from workers.engine.models.network import Network

MOST_OFF = 0.05
"""A run whose rows chose so much more or fewer experts does not count."""


class Distinct(NamedTuple):
    """Distinct experts of a layer and step: those that were found, and as many as uniform and
    independent choices have on average.
    """

    found: float
    expected: float

    @property
    def counts(self) -> bool:
        """Whether a time with these experts says anything."""
        return abs(self.found / self.expected - 1) <= MOST_OFF


@final
class Drawing:
    """The routers of a network, all of which draw or none. Use it while the engine is idle."""

    def __init__(self, routers: list[Drawn], routing: Routing) -> None:
        self._routers = routers
        self._routing = routing

    @classmethod
    def of(cls, network: Network) -> "Drawing | None":
        """The draws of a network with drawn weights; None if it has no mixtures."""
        found = [layer.experts for layer in network.weights.layers if layer.experts is not None]
        routers = [experts.drawn for experts in found if experts.drawn is not None]
        return cls(routers, network.config.mixtures[0].routing) if routers else None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The weights choose, whose answers can be checked."""
        self.turn(on=False)
        try:
            yield
        finally:
            self.turn(on=True)

    def turn(self, *, on: bool) -> None:
        """Draw from the next step on, or leave it."""
        state = self._routers[0].state  # that of all layers
        with torch.inference_mode():
            state[:1].fill_(int(on))
        if state.is_cuda:
            torch.cuda.synchronize(state.device)

    def distinct(self, rows: int) -> Distinct | None:
        """The counts of distinct experts for the first `rows` rows of the last step, as the mean of
        all layers; None for more rows than are kept.
        """
        kept = [router.kept for router in self._routers]
        if rows > kept[0].shape[0]:
            return None
        if kept[0].is_cuda:
            torch.cuda.synchronize(kept[0].device)
        found = mean(len(experts[:rows].unique()) for experts in kept)
        return Distinct(found, distinct_experts(*self._routing[:2], rows))
