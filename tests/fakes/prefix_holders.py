"""Whether the gateway's prefix index knows a block of a worker."""

from gateway.routing.prefix_index import PrefixIndex
from protocol.ids import BlockDigest, WorkerId


def holds(index: PrefixIndex, worker_id: WorkerId, digest: BlockDigest) -> bool:
    part = index._parts.get(worker_id)
    return part is not None and bool(index._table.holders(digest) & part.bit)
