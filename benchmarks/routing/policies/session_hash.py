"""`session_hash`: a conversation stays where its name hashes to.

Owns sticky sessions as nginx's `hash $http_x_session_id`, Olla and LiteLLM's session affinity offer
them: the session's name modulo the workers, whatever they are doing. A request without a session
is hashed by the beginning of its prompt (Olla: the first bytes of `messages`), here the first four
blocks, 2k tokens of a chat.
"""

from typing import Final

import xxhash

from benchmarks.routing.policies.base import Baseline
from benchmarks.routing.trace import Turn

_BEGINNING_BLOCKS: Final = 4


class SessionHash(Baseline):
    """Always the same worker for the same name."""

    def route(self, turn: Turn) -> int:
        """The one that the name hashes to."""
        beginning = turn.digests[:_BEGINNING_BLOCKS]
        name = turn.session.encode() if turn.session is not None else b"".join(beginning)
        return xxhash.xxh3_64_intdigest(name) % self.setting.num_workers
