"""Policies without knowledge of caches.

Round robin, random, fewest requests and power of two choices, as in every load balancer (nginx,
Envoy, LiteLLM's weighted random), by their textbook definitions.
"""

from random import Random

from benchmarks.routing.policies.base import Baseline, Setting
from benchmarks.routing.trace import TracedTurn


class RoundRobin(Baseline):
    """One after the other."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._next = 0

    def route(self, turn: TracedTurn) -> int:
        worker = self._next
        self._next = (worker + 1) % self.setting.num_workers
        return worker


class Chance(Baseline):
    """Any worker, with equal probability."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._chance = Random(setting.seed)

    def route(self, turn: TracedTurn) -> int:
        return self._chance.randrange(self.setting.num_workers)


class LeastRequests(Baseline):
    """The fewest requests in flight; equals take turns, as in nginx's least_conn."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._last = -1

    def route(self, turn: TracedTurn) -> int:
        num_workers = self.setting.num_workers
        order = [(self._last + 1 + step) % num_workers for step in range(num_workers)]
        self._last = min(order, key=self.in_flight.__getitem__)
        return self._last


class PowerOfTwo(Baseline):
    """Two are drawn; the one with fewer requests in flight wins (Mitzenmacher 2001)."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._chance = Random(setting.seed)

    def route(self, turn: TracedTurn) -> int:
        drawn = self._chance.sample(range(self.setting.num_workers), 2)
        return min(drawn, key=self.in_flight.__getitem__)
