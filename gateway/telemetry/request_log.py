"""The request log: one line per request, if the configuration asks for it.

Owns the fields and their order, as `name=value` pairs. Names of workers, models and keys are
configured, the client's program is one word, and reasons are the gateway's own texts, so no line
holds text of a prompt or an answer. Must not know where the log goes.
"""

import json
import logging
from collections.abc import Iterator
from typing import Final

from gateway.telemetry.request_traces import OK, RequestTrace

_log: Final = logging.getLogger(__name__)


def log_request(trace: RequestTrace) -> None:
    """Log a request that has ended."""
    _log.info("%s", request_line(trace))


def request_line(trace: RequestTrace) -> str:
    """The line of an ended request; `-` stands for unknown values."""
    pairs = " ".join(f"{name}={_word(value)}" for name, value in _fields(trace))
    attempts = trace.turn.attempts
    return f"{pairs} why={json.dumps(attempts[-1].reason)}" if attempts else pairs


def _fields(trace: RequestTrace) -> Iterator[tuple[str, object]]:
    turn, usage = trace.turn, trace.usage
    attempt = turn.attempts[-1] if turn.attempts else None
    server = "-" if attempt is None else attempt.server
    cached = 0 if attempt is None else attempt.cached_tokens
    yield "request", trace.id
    yield "api", trace.api
    yield "status", trace.status
    yield "model", trace.model
    yield "server", trace.served_by if trace.served_by.startswith("cloud:") else server
    yield "key", trace.key or "-"
    yield "client", trace.client or "-"
    yield "prompt", turn.prompt_tokens if usage is None else usage.prompt_tokens
    yield "cached", cached if usage is None else usage.cached_tokens
    yield "output", trace.output_tokens
    yield "first_ms", _since(trace.received_at, trace.first_at)
    yield "total_ms", _since(trace.received_at, trace.ended_at)
    yield "finish", trace.finish or "-"
    if turn.num_attempts > 1:
        yield "tries", turn.num_attempts
    if trace.status != OK and trace.error:
        yield "error", trace.error


def _word(value: object) -> str:
    """One word of one line: the path of a request that is passed on is the client's."""
    text = str(value)
    if text.isascii() and text.isprintable() and " " not in text:
        return text
    return "".join(one if one.isprintable() and not one.isspace() else "?" for one in text)


def _since(start: float, end: float | None) -> str:
    return "-" if end is None else f"{1000 * (end - start):.0f}"
