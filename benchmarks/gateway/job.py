"""A job for the load generator, and its outcome.

Owns both structures and their encoding. Must not know sockets.
"""

from typing import Literal

import msgspec


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """One request: its JSON body, and the index of its answer in the job's `expected`. With
    `leave_after_bytes` the client disconnects after that many bytes.
    """

    body: bytes
    expected: int
    leave_after_bytes: int | None = None


class LoadJob(msgspec.Struct, frozen=True):
    """`asks` over `connections`, each of which sends the next request when the last one is done.
    `num_tokens` per answer. `check` is the kind of `expected`: words of a stream, words of an
    answer in one piece, or all bytes of a body. `num_deaf` more connections send one request and
    read nothing. The first requests are spread over `ramp_s`.
    """

    port: int
    connections: int
    asks: list[Ask]
    expected: list[bytes]
    num_tokens: int
    check: Literal["stream", "whole", "bytes"]
    num_deaf: int = 0
    ramp_s: float = 0.0
    patience_s: float = 60.0


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of many times, in milliseconds."""

    count: int
    p50: float
    p99: float
    most: float


class LoadOutcome(msgspec.Struct, frozen=True):
    """`tokens` counts tokens, or an upstream's events. `gaps` are between reads of one stream,
    `latencies` from a request to the last byte of its answer. Clients left `num_left` answers;
    `deaf_cut` of the deaf connections were closed by the server. The generator used `cpu_s`.
    """

    seconds: float
    answers: int
    tokens: int
    latencies: Spread
    gaps: Spread
    errors: list[str]
    num_errors: int
    num_left: int
    deaf_cut: int
    cpu_s: float


def spread(values_s: list[float]) -> Spread:
    """The percentiles of `values_s` (seconds); zeros for none."""
    if not values_s:
        return Spread(0, 0.0, 0.0, 0.0)
    ordered = sorted(values_s)
    last = len(ordered) - 1
    at = (ordered[round(share * last)] * 1e3 for share in (0.5, 0.99, 1.0))
    return Spread(len(ordered), *at)
