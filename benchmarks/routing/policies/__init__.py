"""The policies by name.

Owns the list: ours, the published ones and the bounds. A bound knows what no router can know; it
is reported and never compared.
"""

from collections.abc import Callable
from typing import Final

from benchmarks.routing.policies.base import Policy, Setting
from benchmarks.routing.policies.herma import Herma
from benchmarks.routing.policies.simple import Chance, LeastRequests, PowerOfTwo, RoundRobin

OURS: Final = "herma"

BASELINES: Final[dict[str, Callable[[Setting], Policy]]] = {
    "round_robin": RoundRobin,
    "random": Chance,
    "least_requests": LeastRequests,
    "power_of_two": PowerOfTwo,
}

BOUNDS: Final[dict[str, Callable[[Setting], Policy]]] = {}

POLICIES: Final[dict[str, Callable[[Setting], Policy]]] = {OURS: Herma, **BASELINES, **BOUNDS}
