"""The proof that an engine answers, before gateways are notified: four tokens on link 0, or some
bytes of a text-level engine's answer.

Owns the request and what counts as a good answer. Must not know processes.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from protocol.messages import (
    Finished,
    FromWorker,
    Rejected,
    Relay,
    RelayData,
    RelayEnd,
    RelayFacts,
    RelayHead,
    Tokens,
)
from protocol.probing import PROBE_TOKENS, probe_of
from protocol.tokens import count_tokens

_OK: Final = 200


class HealthProbe:
    """One request and its answer so far."""

    def __init__(self, request_id: bytes, model: str, relay: RelayFacts | None = None) -> None:
        self.request = (
            probe_of(request_id, 0, model) if relay is None else _relay(request_id, model, relay)
        )
        self.answered = False
        self.failure: str | None = None
        self._num_tokens = 0
        self._status = 0
        self._num_bytes = 0

    def receive(self, message: FromWorker) -> None:
        """Take a message of the engine about the probe."""
        match message:
            case Tokens(items=items):
                self._num_tokens += sum(count_tokens(item.ids) for item in items)
            case Finished(reason="stop" | "length") if self._num_tokens == PROBE_TOKENS:
                self.answered = True
            case Finished(reason=reason, detail=detail):
                self.failure = (
                    f"the health probe got {self._num_tokens} of {PROBE_TOKENS} tokens: "
                    f"{reason} {detail}".rstrip()
                )
            case Rejected(reason=reason, detail=detail):
                self.failure = f"the health probe was rejected: {reason} {detail}".rstrip()
            case RelayHead(status=status):
                self._status = status
            case RelayData(data=data):
                self._num_bytes += len(data)
            case RelayEnd(error=None) if self._status == _OK and self._num_bytes:
                self.answered = True
            case RelayEnd(error=error, detail=detail):
                got = f"status {self._status} and {self._num_bytes} bytes"
                self.failure = f"the health probe got {got}: {error or ''} {detail}".rstrip(": ")
            case _:
                pass


def _relay(request_id: bytes, model: str, facts: RelayFacts) -> Relay:
    return chat_relay(request_id, 0, model, chat_fields(facts, "Hi", PROBE_TOKENS))


def chat_fields(facts: RelayFacts, text: str, max_tokens: int) -> dict[str, Any]:
    """The body of a question to a text-level engine."""
    messages = [{"role": "user", "content": text}]
    return {"model": facts.model, "messages": messages, "max_tokens": max_tokens}


def chat_relay(request_id: bytes, attempt: int, model: str, fields: Mapping[str, Any]) -> Relay:
    """The chat with that body, as a message to the engine."""
    body = msgspec.json.encode(fields)
    headers = (("content-type", "application/json"),)
    return Relay(request_id, attempt, model, "/v1/chat/completions", headers, len(body), body)
