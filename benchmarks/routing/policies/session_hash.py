"""`session_hash`: a conversation stays where its name hashes to.

Sticky sessions as in nginx's `hash $http_x_session_id`, Olla and LiteLLM's session affinity: the
session's name modulo the workers, whatever their load. A request without a session is hashed by the
beginning of its prompt (Olla: the first bytes of `messages`), here the first four blocks, 2k tokens
of a chat.
"""

from typing import Final

import xxhash

from benchmarks.routing.policies.base import Baseline
from benchmarks.routing.trace import TracedTurn

_BEGINNING_BLOCKS: Final = 4


class SessionHash(Baseline):
    """The same worker for the same name."""

    def route(self, turn: TracedTurn) -> int:
        beginning = turn.digests[:_BEGINNING_BLOCKS]
        name = turn.session.encode() if turn.session is not None else b"".join(beginning)
        return xxhash.xxh3_64_intdigest(name) % self.setting.num_workers
