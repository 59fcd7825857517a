"""`[[keys]]`: an API key, and what its requests may do and cost.

Must not know keys themselves: the file has their hashes.
"""

import re
from typing import Annotated, Final, Literal

import msgspec

from config.tables.conversations import ConversationLimitsConfig
from config.tables.gateway import RateLimitConfig
from config.tables.providers import LimitsConfig
from config.tables.values import ConfigTable, Name

_KEY_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


class KeyConfig(ConfigTable, frozen=True):
    """`[[keys]]`: an API key by its hash (`herma keys new` prints both). `weight` is its share
    under load. `cache = "private"` keeps its prefixes from other keys, `store = "never"` keeps its
    responses and conversations out of the store, `cloud = "never"` its requests from providers.
    `rate_limit` replaces that of `[gateway]`; an empty table means no limit.
    """

    name: Name
    hash: str
    weight: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    cache: Literal["shared", "private"] = "shared"
    store: Literal["allow", "never"] = "allow"
    cloud: Literal["allow", "never"] = "allow"
    limits: LimitsConfig = LimitsConfig()
    conversation: ConversationLimitsConfig = ConversationLimitsConfig()
    rate_limit: RateLimitConfig | None = None
    admin: bool = False

    def __post_init__(self) -> None:
        if not _KEY_HASH.fullmatch(self.hash):
            raise ValueError("hash must be 'sha256:' and 64 hex digits; `herma keys new` makes one")
