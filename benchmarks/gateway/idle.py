"""The memory of streams that stand and say nothing.

Owns their sockets, in the process that measures: thousands of clients that have sent a request and
got the head of the answer. A step of the engine lasts 5 s, and only the first hundred streams get
tokens. A small run has shorter steps, since its engine's start takes some, and heads that are held
for a second. Must not know what the gateway keeps for a stream.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks.gateway.bench import GatewayBench
from benchmarks.gateway.processes import MeasuredFleet
from benchmarks.gateway.words import NUM_SEEDS, request

NUM_STREAMS: Final = 10_000
STEP_MS: Final = 5_000
HEAD_HOLD_S: Final = 10
_NUM_TOKENS: Final = 64
_NUM_WARM: Final = 100
_PATIENCE_S: Final = 120.0
_SPARE_DESCRIPTORS: Final = 500
_HEAD_BYTES: Final = 4096


def idle(bench: GatewayBench) -> dict[str, Any]:
    """KB of memory of each of 10,000 streams beside those that warmed the gateway up. Fewer where
    this user may not open as many files.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS
    count = min(bench.size.of(NUM_STREAMS, 100), most)
    fleet = MeasuredFleet(
        bench.size.of(STEP_MS, 500),
        _NUM_WARM,
        max_waiting=count + 2 * _NUM_WARM,
        head_hold_s=bench.size.of(HEAD_HOLD_S, 1),
    )
    with bench.gateway(fleet, is_own=True) as gateway, _standing(gateway.port, _NUM_WARM):
        before_mb = gateway.memory_mb("VmRSS")
        bench.report_progress(f"idle: {count} streams")
        with _standing(gateway.port, count):
            after_mb = gateway.memory_mb("VmRSS")
    each_kb = (after_mb - before_mb) * 1e3 / count
    bench.figures.add("idle_kb_per_stream", each_kb)
    return {
        "streams": count,
        "kb_each": round(each_kb, 2),
        "rss_mb": {"before": round(before_mb, 1), "after": round(after_mb, 1)},
    }


@contextmanager
def _standing(port: int, count: int) -> Iterator[None]:
    """`count` streams whose heads have arrived: all are asked first, since the head of a silent
    stream comes with its first sign of life. They are left at the end of the block.
    """
    sockets: list[socket.socket] = []
    try:
        sockets.extend(_asked(port, number) for number in range(count))
        for one in sockets:
            _read_head(one)
        yield
    finally:
        for one in sockets:
            one.close()


def _asked(port: int, number: int) -> socket.socket:
    body = request(number % NUM_SEEDS, number, _NUM_TOKENS, stream=True)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    one = socket.create_connection(("127.0.0.1", port), _PATIENCE_S)
    one.sendall(head.encode() + body)
    return one


def _read_head(one: socket.socket) -> None:
    status = one.recv(_HEAD_BYTES)
    if b" 200 " not in status[:20]:
        raise RuntimeError(f"a stream did not begin: {status.decode(errors='replace')}")
