"""The index of a gateway process among those that share a port.

Owns what differs between them: the address for workers, the process's own port, its name and its
share of rate limits. Must not know how processes are started or ended.
"""

import re
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from config import Config, RateLimitConfig
from protocol.addresses import nth_address
from protocol.errors import ConfigError

_INDEX_OF_COUNT: Final = re.compile(r"(\d{1,4})/(\d{1,4})")


@dataclass(frozen=True, slots=True)
class GatewayIndex:
    """Process `index`, from 0, of `count`."""

    index: int = 0
    count: int = 1

    @property
    def is_shared(self) -> bool:
        """Whether other processes share the port."""
        return self.count > 1

    @property
    def name(self) -> str | None:
        """The name of this process in logs and metrics; None for the only process."""
        return str(self.index) if self.is_shared else None

    @property
    def place(self) -> tuple[int, int]:
        """Both numbers, in the form that the stores of a host take."""
        return self.index, self.count

    def config(self, config: Config) -> Config:
        """`config` with this process's own addresses and rates."""
        if not self.is_shared:
            return config
        gateway = config.gateway
        port = gateway.process_port
        return replace(
            config,
            gateway=replace(
                gateway,
                worker_bind=nth_address(gateway.worker_bind, self.index),
                process_port=None if port is None else port + self.index,
                rate_limit=self._share(gateway.rate_limit),
                address_rate_limit=self._share(gateway.address_rate_limit),
            ),
            keys=tuple(replace(key, rate_limit=self._share(key.rate_limit)) for key in config.keys),
        )

    def _share(self, limits: RateLimitConfig | None) -> RateLimitConfig | None:
        return None if limits is None else limits.share(self.count)

    def neighbours(self, worker_bind: str) -> tuple[str, ...]:
        """The addresses at which workers dial the other processes; process 0 has `worker_bind`."""
        others = (index for index in range(self.count) if index != self.index)
        return tuple(nth_address(worker_bind, index) for index in others)


ALONE: Final = GatewayIndex()


def gateway_index_of(text: str) -> GatewayIndex:
    """Parse an index such as `2/4`. Raises `ConfigError`."""
    if match := _INDEX_OF_COUNT.fullmatch(text):
        index, count = map(int, match.groups())
        if index < count:
            return GatewayIndex(index, count)
    raise ConfigError(f"--process takes an index and a count, such as 0/4, not {text!r}")
