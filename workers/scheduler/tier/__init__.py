"""The host tier of the prefix cache: which blocks and states lie in the host's memory. Pure.

Owns the pages of the region, their owners and states, the index that survives the engine, and what
is copied next. Must not know tensors, devices or a clock.
"""

from workers.scheduler.tier.entry import EntryKind, Name, TierEntry
from workers.scheduler.tier.host_tier import HostTier, TierRoom
from workers.scheduler.tier.index import Index, PageRecord, TierLayout
from workers.scheduler.tier.no_tier import NoHostTier
from workers.scheduler.tier.pool import TierPool
from workers.scheduler.tier.tier_state import BlockEvent, TierState, follow
from workers.scheduler.tier.transfers import Copy, Transfer, Transferred
