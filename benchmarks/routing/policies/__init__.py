"""The policies by name: ours, the published ones and the bounds.

A bound uses knowledge that no router can have; it is reported and never compared.
"""

from collections.abc import Callable
from typing import Final

from benchmarks.routing.policies.aibrix import AibrixPrefix
from benchmarks.routing.policies.base import RoutingPolicy, Setting
from benchmarks.routing.policies.bounds import BoundInfinite, BoundOracle
from benchmarks.routing.policies.dynamo import DynamoKv
from benchmarks.routing.policies.herma import Herma
from benchmarks.routing.policies.llmd import LlmdPrecise
from benchmarks.routing.policies.lmetric import LMetric
from benchmarks.routing.policies.session_hash import SessionHash
from benchmarks.routing.policies.simple import Chance, LeastRequests, PowerOfTwo, RoundRobin
from benchmarks.routing.policies.smg import SmgCacheAware

Maker = Callable[[Setting], RoutingPolicy]

OURS: Final = "herma"

BASELINES: Final[dict[str, Maker]] = {
    "round_robin": RoundRobin,
    "random": Chance,
    "least_requests": LeastRequests,
    "power_of_two": PowerOfTwo,
    "session_hash": SessionHash,
    "smg_cache_aware": SmgCacheAware,
    "llmd_precise": LlmdPrecise,
    "dynamo_kv": DynamoKv,
    "aibrix_prefix": AibrixPrefix,
    "lmetric": LMetric,
}

BOUNDS: Final[dict[str, Maker]] = {"bound_infinite": BoundInfinite, "bound_oracle": BoundOracle}

POLICIES: Final[dict[str, Maker]] = {OURS: Herma, **BASELINES, **BOUNDS}
