"""What a client may cost the server before it is refused.

Owns the limits and deadlines of a connection and their reasons. Must not know who enforces them.
How large a body may be is the app's to say (`gateway/http/body.py`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_target_bytes` bounds the request line, `max_head_bytes` the head, and likewise the
    trailers and any one chunk's header. Up to `max_waiting_requests` pipelined requests wait for
    the one being answered, and up to `max_body_ahead_bytes` of a body for the app to take them;
    beyond, nothing is read.
    """

    max_target_bytes: int = 8 * 2**10
    max_head_bytes: int = 64 * 2**10
    max_headers: int = 100
    max_waiting_requests: int = 16
    max_body_ahead_bytes: int = 256 * 2**10


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a peer may take. `idle_s` between requests is longer than the pools of common
    clients keep a connection (5 to 60 s). A head has `head_s` from its first byte. A body may not
    fall silent for `body_silence_s`, nor, after `body_grace_s`, come slower than
    `min_body_bytes_per_s`. After an answer that came before the whole question the rest is read
    away for `linger_s`: closing with unread bytes makes the kernel reset the connection, and the
    client may lose the answer.
    """

    idle_s: float = 75.0
    head_s: float = 20.0
    body_silence_s: float = 30.0
    body_grace_s: float = 30.0
    min_body_bytes_per_s: float = 1024.0
    linger_s: float = 2.0

    def body_by(self, began_at: float, now: float, num_bytes: int) -> float:
        """When a body that began at `began_at`, and of which `num_bytes` are there, is overdue
        unless more of it comes.
        """
        slowest_at = began_at + self.body_grace_s + num_bytes / self.min_body_bytes_per_s
        return min(now + self.body_silence_s, slowest_at)

    @property
    def sweep_s(self) -> float:
        """How often to look: a deadline may be overdrawn by so much. Twice the beat of the actors'
        tasks at rest, so that it wakes the process at no other moment.
        """
        shortest = min(self.idle_s, self.head_s, self.body_silence_s)
        return min(0.8, shortest / 4)
