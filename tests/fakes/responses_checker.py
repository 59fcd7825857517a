"""What a streamed answer of the Responses API must be, from its first byte to its last.

Owns the grammar of the stream: framing, numbers from 0 without a gap, created first, items and
parts in order and nested, sums of deltas, one end. Pure: bytes in, a `StreamFault` or the final
response out.
"""

from typing import Any, Final

import msgspec

from tests.fakes.stream_checker import StreamFault

REQUIRED: Final = (
    "id", "object", "created_at", "model", "output", "parallel_tool_calls", "tool_choice",
    "tools", "status", "error", "incomplete_details", "instructions", "metadata",
    "temperature", "top_p", "usage",
)  # fmt: skip
PREFIXES: Final = {
    "reasoning": "rs_",
    "message": "msg_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "tool_search_call": "tsc_",
    "shell_call": "sh_",
    "local_shell_call": "lsh_",
    "apply_patch_call": "apc_",
    "compaction": "cmp_",
}
TEXTLESS: Final = (
    "tool_search_call", "compaction", "shell_call", "local_shell_call", "apply_patch_call",
)  # fmt: skip
"""Items whose content comes at once, at their end."""
TEXTS: Final = {
    "message": ("output_text", "content"),
    "reasoning": ("reasoning_text", "content"),
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}
ENDS: Final = ("completed", "incomplete", "failed")
CANCELLED: Final = ("incomplete", "cancelled")
"""No event says that a response was cancelled, so the last one is that of an incomplete one."""


class ResponsesChecker:
    """Takes a stream's bytes as they come; raises `StreamFault` at the first that is wrong.
    Comments are nothing. `items` are those that are done, `response` the last state.
    """

    def __init__(self) -> None:
        self.response: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.items: list[dict[str, Any]] = []
        self.kinds: list[str] = []
        self.text = ""
        self._open: dict[str, Any] | None = None
        self._sum = ""
        self._annotations: list[Any] = []
        self._commands: list[str] = []
        self._is_text_done = False
        self._has_part = False
        self._part = ""
        self._is_over = False
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Check what `data` completes."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if not event.startswith(b":"):
                self._take(event)

    def end(self) -> None:
        """The connection said that the answer is complete: is it?"""
        self._check(not self._rest, f"ended within an event: {self._rest[:80]!r}")
        self._check(self._is_over, "ended without its last event")

    def _take(self, event: bytes) -> None:
        self._check(not self._is_over, f"something behind the end: {event[:80]!r}")
        first, _, second = event.partition(b"\n")
        framed = first.startswith(b"event: ") and second.startswith(b"data: ")
        self._check(framed and b"\n" not in second, f"no event with one line of data: {event!r}")
        fields = msgspec.json.decode(second[6:])
        kind = first[7:].decode()
        self._check(fields["type"] == kind, f"an event {kind} of type {fields['type']}")
        number = fields["sequence_number"]
        self._check(number == len(self.kinds), f"{kind} has the number {number}")
        self._check(bool(self.kinds) or kind == "response.created", f"{kind} is the first")
        self.kinds.append(kind)
        name = kind.removeprefix("response.")
        if "response" in fields:
            self._take_state(name, fields["response"])
        elif name.startswith("output_item"):
            self._take_item(name, fields)
        elif name.startswith("content_part"):
            self._take_part(name, fields)
        else:
            self._take_text(name, fields)

    def _take_state(self, name: str, response: dict[str, Any]) -> None:
        lacking = [field for field in REQUIRED if field not in response]
        self._check(not lacking, f"{name} lacks {lacking}")
        if self.response is not None:
            self._check(response["id"] == self.response["id"], f"another id: {response['id']}")
        self._check(response["id"].startswith("resp_"), f"an id {response['id']}")
        self.response = response
        if name not in ENDS:
            self._check(name in {"created", "in_progress", "queued"}, f"a state {name}")
            self._check(response["status"] in {"in_progress", "queued"}, "a status")
            return
        self._is_over = True
        fits = response["status"] == name or (name, response["status"]) == CANCELLED
        self._check(fits, f"{name} with status {response['status']}")
        self.error = response["error"]
        self._check((name == "failed") == bool(self.error), f"{name} with {self.error}")
        self._check(response["output"] == self.items, "an output that is not the items that came")
        self._check(name == "failed" or self._open is None, "an item that has no end")
        if (usage := response["usage"]) is not None:
            total = usage["input_tokens"] + usage["output_tokens"]
            self._check(total == usage["total_tokens"], f"a total that is no sum: {usage}")

    def _take_item(self, name: str, fields: dict[str, Any]) -> None:
        item, index = fields["item"], fields["output_index"]
        if name == "output_item.added":
            self._check(self._open is None, f"an item within another: {item}")
            self._check(index == len(self.items), f"the index {index}")
            self._check(item["id"].startswith(PREFIXES[item["type"]]), f"the id {item['id']}")
            self._check(item["id"] not in [one["id"] for one in self.items], "an id twice")
            self._check(item["status"] == "in_progress", f"the status {item['status']}")
            self._open, self._sum, self._annotations = item, "", []
            self._commands = []
            self._is_text_done = self._has_part = False
            return
        opened = self._of_open(fields["item"]["id"], index)
        for same in ("type", "id", "call_id", "name"):
            self._check(item.get(same) == opened.get(same), f"{same} of {item} changed")
        if item["type"] == "shell_call":
            self._check(item["action"]["commands"] == self._commands, "other commands than came")
        if item["type"] in TEXTLESS:
            self.items.append(item)
            self._open = None
            return
        self._check(item["status"] in {"completed", "incomplete"}, f"the status {item['status']}")
        self._check(self._is_text_done and not self._has_part, "an end before that of its content")
        _, name = TEXTS[item["type"]]
        whole = _said(item[name][0]) if name == "content" else item[name]
        self._check(whole == self._sum, f"{whole!r} is not the sum of the deltas")
        self.items.append(item)
        self._open = None

    def _take_part(self, name: str, fields: dict[str, Any]) -> None:
        item = self._of_open(fields["item_id"], fields["output_index"])
        kinds = {"message": ("output_text", "refusal"), "reasoning": ("reasoning_text",)}
        self._check(item["type"] in kinds, f"a part in {item['type']}")
        self._check(fields["part"]["type"] in kinds[item["type"]], f"{fields}")
        self._check(fields["content_index"] == 0, f"{fields}")
        is_added = name == "content_part.added"
        self._check(self._has_part != is_added, f"{name} at the wrong place")
        self._check(is_added or self._is_text_done, "a part that ends before its text")
        self._check(_said(fields["part"]) == self._sum, "a part that is not its text")
        self._check(is_added or fields["part"]["type"] == self._part, "a part of another type")
        self._part = fields["part"]["type"]
        told = fields["part"].get("annotations", [])
        self._check(told == self._annotations, "a part with other annotations than came")
        self._has_part = is_added

    def _take_command(self, name: str, fields: dict[str, Any]) -> None:
        assert self._open is not None
        self._check(self._open["type"] == "shell_call", f"{name} outside of a shell's call")
        self._check(fields["output_index"] == len(self.items), f"the index of {name}")
        if name.endswith("added"):
            self._check(fields["command_index"] == len(self._commands), f"{fields}")
            self._commands.append(fields["command"])
            return
        self._check(fields["command_index"] == len(self._commands) - 1, f"{fields}")
        if name.endswith("delta"):
            self._commands[-1] += fields["delta"]
        self._check(fields.get("command", self._commands[-1]) == self._commands[-1], f"{fields}")

    def _take_text(self, name: str, fields: dict[str, Any]) -> None:
        if name.startswith("shell_call_command."):
            self._take_command(name, fields)
            return
        item = self._of_open(fields["item_id"], fields["output_index"])
        if name == "output_text.annotation.added":
            self._check(self._has_part and not self._is_text_done, f"{name} outside of its part")
            self._check(fields["annotation_index"] == len(self._annotations), f"{fields}")
            self._annotations.append(fields["annotation"])
            return
        kind, verb = name.rsplit(".", 1)
        own, field = TEXTS[item["type"]]
        own = self._part if field == "content" else own
        self._check(kind == own, f"{name} in an item of type {item['type']}")
        self._check(not self._is_text_done, f"{name} behind the text's end")
        self._check(self._has_part == (field == "content"), f"{name} outside of its part")
        if kind == "output_text":
            self._check(isinstance(fields["logprobs"], list), "a text without logprobs")
        if verb == "delta":
            self._sum += fields["delta"]
            self.text += fields["delta"] if kind == "output_text" else ""
            return
        self._check(verb == "done", f"an event {name}")
        whole = _said(fields) if field == "content" else fields[field]
        self._check(whole == self._sum, f"{whole!r} is not the sum of the deltas")
        self._is_text_done = True

    def _of_open(self, item_id: str, index: int) -> dict[str, Any]:
        self._check(self._open is not None, f"nothing is open for {item_id}")
        assert self._open is not None
        self._check(self._open["id"] == item_id and index == len(self.items), f"not {item_id}")
        return self._open

    def _check(self, holds: bool, fault: str) -> None:
        if not holds:
            raise StreamFault(f"event {len(self.kinds)}: {fault}")


def _said(fields: dict[str, Any]) -> str:
    """The text of a part, or the refusal."""
    said: str = fields["text"] if "text" in fields else fields["refusal"]
    return said


def check_responses(data: bytes) -> ResponsesChecker:
    """Check a whole stream. Raises `StreamFault`."""
    checker = ResponsesChecker()
    checker.feed(data)
    checker.end()
    return checker
