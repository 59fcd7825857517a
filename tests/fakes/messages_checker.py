"""What a streamed answer of the Messages API must be, from its first byte to its last.

Owns the grammar of the stream: framing, one message, blocks by rising index, one open at a time,
each kind's deltas and ends, the reason and the usage, the stop. Pure: bytes in, a `StreamFault` or
the joined message out.
"""

from typing import Any, Final

import jiter
import msgspec

from tests.fakes.stream_checker import StreamFault

REASONS: Final = (
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "refusal",
    "compaction",
)
USAGE: Final = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
DELTAS: Final = {
    "text": {"text_delta": "text", "citations_delta": "citation"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
    "compaction": {"compaction_delta": "content"},
}
EMPTY: Final = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
    "compaction": {"content": None},
}


class MessagesChecker:
    """Takes a stream's bytes as they come; raises `StreamFault` at the first that is wrong.
    `message` is what a client that joins the deltas has; `inputs` are those of its calls, by block,
    as far as they go.
    """

    def __init__(self) -> None:
        self.message: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.is_done = False
        self.kinds: list[str] = []
        self.inputs: dict[int, dict[str, Any]] = {}
        self._open: dict[str, Any] | None = None
        self._arguments = ""
        self._has_ended = False
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Check what `data` completes."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            self._take(event)

    def end(self) -> None:
        """The connection said that the answer is complete: is it?"""
        self._check(not self._rest, f"ended within an event: {self._rest[:80]!r}")
        self._check(self.is_done or self.error is not None, "ended without its stop or an error")

    def _take(self, event: bytes) -> None:
        self._check(not (self.is_done or self.error), f"something behind the end: {event[:80]!r}")
        first, _, second = event.partition(b"\n")
        framed = first.startswith(b"event: ") and second.startswith(b"data: ")
        self._check(framed and b"\n" not in second, f"no event with one line of data: {event!r}")
        fields = msgspec.json.decode(second[6:])
        kind = first[7:].decode()
        self._check(fields.get("type") == kind, f"an event {kind} of type {fields.get('type')}")
        self.kinds.append(kind)
        if kind == "error":
            self._check(bool(fields["error"]["message"]), "an error without a message")
            self._check(bool(fields.get("request_id")), "an error without its request")
            self.error = fields["error"]
        elif kind == "message_start":
            self._begin(fields["message"])
        elif kind != "ping":
            self._check(self.message is not None, f"{kind} before the message")
            getattr(self, f"_{kind}")(fields)

    def _begin(self, message: dict[str, Any]) -> None:
        self._check(self.message is None, "a second message")
        self._check(message["id"].startswith("msg_"), f"an id {message['id']}")
        self._check((message["type"], message["role"]) == ("message", "assistant"), "a role")
        self._check(message["content"] == [] and message["stop_reason"] is None, "not empty")
        self._check_usage(message["usage"])
        self.message = message

    def _content_block_start(self, fields: dict[str, Any]) -> None:
        assert self.message is not None
        block = fields["content_block"]
        self._check(self._open is None and not self._has_ended, f"a block too many: {block}")
        self._check(fields["index"] == len(self.message["content"]), f"index {fields['index']}")
        for name, value in EMPTY[block["type"]].items():
            self._check(block[name] == value, f"a block that begins with {block}")
        if block["type"] == "tool_use":
            self._check(block["id"].startswith("toolu_") and bool(block["name"]), f"call {block}")
            taken = [one["id"] for one in self.message["content"] if one["type"] == "tool_use"]
            self._check(block["id"] not in taken, f"two calls of the id {block['id']}")
        self._open = block
        self._arguments = ""
        self.message["content"].append(block)

    def _content_block_delta(self, fields: dict[str, Any]) -> None:
        block, delta = self._of_open(fields), fields["delta"]
        name = DELTAS[block["type"]].get(delta["type"])
        self._check(name is not None, f"{delta['type']} in a block of type {block['type']}")
        assert name is not None
        if name == "partial_json":
            self._arguments += delta[name]
            return
        if name == "citation":
            self._check(bool(block["text"]), "a citation before its text")
            block["citations"] = [*(block["citations"] or ()), delta[name]]
            return
        if name == "content":  # clients take the last delta for the whole
            self._check(block["content"] is None, "a summary in several deltas")
            block["content"] = delta[name]
            return
        self._check(not block.get("signature"), f"{delta} behind the signature")
        block[name] += delta[name]

    def _content_block_stop(self, fields: dict[str, Any]) -> None:
        block = self._of_open(fields)
        assert self.message is not None
        if block["type"] == "thinking":
            self._check(bool(block["signature"]), "thinking without a signature")
        if block["type"] == "tool_use":
            try:
                block["input"] = msgspec.json.decode(self._arguments)
            except msgspec.DecodeError:
                block["input"] = None
            # What the official client makes of it; it raises for what no object begins with.
            place = len(self.message["content"]) - 1
            self.inputs[place] = jiter.from_json(self._arguments.encode(), partial_mode=True)
        if block["type"] == "text":
            self._check(bool(block["text"]), "an empty text")
        self._open = None

    def _message_delta(self, fields: dict[str, Any]) -> None:
        assert self.message is not None
        self._check(self._open is None and not self._has_ended, "an end amid a block, or a second")
        self._has_ended = True
        self._check_usage(fields["usage"])
        reason = fields["delta"]["stop_reason"]
        self._check(reason in REASONS, f"a stop_reason {reason!r}")
        calls = [one for one in self.message["content"] if one["type"] == "tool_use"]
        self._check(bool(calls) or reason != "tool_use", "ends in calls, and has none")
        whole = all(isinstance(call["input"], dict) for call in calls)
        self._check(whole or reason != "tool_use", "arguments that are no JSON object")
        is_stop = reason == "stop_sequence"
        self._check(bool(fields["delta"]["stop_sequence"]) == is_stop, f"{fields['delta']}")
        self.message |= fields["delta"]
        self.message["usage"] |= fields["usage"]

    def _message_stop(self, fields: dict[str, Any]) -> None:
        self._check(self._has_ended, "stops without a reason")
        self._check(fields == {"type": "message_stop"}, f"{fields}")
        self.is_done = True

    def _of_open(self, fields: dict[str, Any]) -> dict[str, Any]:
        assert self.message is not None
        self._check(self._open is not None, f"no block is open for {fields}")
        self._check(fields["index"] == len(self.message["content"]) - 1, f"another block: {fields}")
        assert self._open is not None
        return self._open

    def _check_usage(self, usage: dict[str, Any]) -> None:
        counts = [usage.get(name) for name in USAGE]
        self._check(all(isinstance(n, int) and n >= 0 for n in counts), f"usage {usage}")

    def _check(self, holds: bool, fault: str) -> None:
        if not holds:
            raise StreamFault(f"event {len(self.kinds)}: {fault}")


def check_messages(data: bytes) -> MessagesChecker:
    """Check a whole stream. Raises `StreamFault`."""
    checker = MessagesChecker()
    checker.feed(data)
    checker.end()
    return checker
