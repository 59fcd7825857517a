"""How much of the host's memory a host tier may take, and how much it takes by default.

Owns these rules, for an engine's start as for `herma plan`. Must not know the memory of devices,
nor import torch: what can never start is refused before that.
"""

from typing import Final

from config import WorkerConfig
from housekeeping.sizes import bytes_text
from protocol.errors import ConfigError
from workers.memory_room import MemoryRoom

SHARE: Final = 0.25
"""The tier takes this share of the memory that is free at the start. The page cache of weights and
other programs keep the rest."""

_PER_CARD: Final = 2
"""The host tier is this many times as large as the keys and values of the card. Eight agents of
128k tokens are twice what a card of 80 GB holds beside an 8B."""

_MOST: Final = 64 * 2**30
"""The most bytes by default; more must be asked for. The memory is page-locked, and no other
program can have it.
"""


def default_bytes(room_bytes: int, card_bytes: int) -> int:
    """The bytes of a tier where `room_bytes` of the host are free, beside `card_bytes` of keys and
    values on a card with memory of its own.
    """
    return min(int(SHARE * room_bytes), _PER_CARD * card_bytes, _MOST)


def check_size(config: WorkerConfig, size: MemoryRoom) -> None:
    """Raise `ConfigError` if the configuration asks for more than the whole host has (`size`)."""
    wanted = config.host_cache_bytes
    if wanted is not None and wanted > size.num_bytes:
        raise ConfigError(
            f"cache.host needs {bytes_text(wanted)}, and {size.source} has "
            f"{bytes_text(size.num_bytes)} in all: lower it or leave it out"
        )
