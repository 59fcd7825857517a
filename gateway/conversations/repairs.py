"""Repairs: rules that take changing lines out of a client's prompts, or order their tools.

Owns what a repair does to a request, and when it is safe. A repair takes whole lines of the system
prompt, or orders whole tools; every other byte stays as it was sent. Must not know which clients
need one.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from config import RepairConfig
from gateway.api import ChatRequest, Message

MAX_LINES: Final = 8
MAX_CHARS: Final = 2000
"""The most characters that a repair takes out of one request: a pattern that matches more is a
mistake.
"""

ANY_CLIENT: Final = "*"


class Repair:
    """One `[[repairs]]` table. `count` is how many requests it has changed."""

    def __init__(self, config: RepairConfig) -> None:
        self.config = config
        self.count = 0
        self._lines = None if config.lines is None else re.compile(config.lines)

    def is_for(self, client: str) -> bool:
        return self.config.on and self.config.client in {client, ANY_CLIENT}

    def mended(self, request: ChatRequest) -> ChatRequest:
        """`request` after this repair; the same object where it does nothing or is not safe."""
        if self.config.do == "sort_tools":
            after = _with_sorted_tools(request)
        else:
            after = self._without_lines(request)
        self.count += after is not request
        return after

    def _without_lines(self, request: ChatRequest) -> ChatRequest:
        if self._lines is None or not request.messages:
            return request
        first, *others = request.messages
        if first.role not in {"system", "developer"} or not first.content:
            return request
        kept, taken = self._split(first.content)
        sent = request.raw.get("messages")
        if not taken or not kept.strip() or not isinstance(sent, list):
            return request
        if not _is_as_sent(sent, first.content):
            return request
        changed: list[Message] = [msgspec.structs.replace(first, content=kept), *others]
        raw_messages = [{**sent[0], "content": kept}, *sent[1:]]
        if self.config.do == "move":
            last, raw_last = changed[-1], raw_messages[-1]
            if last.role != "user" or not isinstance(raw_last.get("content"), str):
                return request
            text = f"{last.content}\n\n{taken}"
            changed[-1] = msgspec.structs.replace(last, content=text)
            raw_messages[-1] = {**raw_last, "content": text}
        raw = {**request.raw, "messages": raw_messages}
        return msgspec.structs.replace(request, messages=tuple(changed), raw=raw)

    def _split(self, text: str) -> tuple[str, str]:
        """The lines that stay, and those that match as a whole."""
        assert self._lines is not None
        kept: list[str] = []
        taken: list[str] = []
        for line in text.splitlines(keepends=True):
            is_short = len(line) <= MAX_CHARS
            is_one = is_short and self._lines.fullmatch(line.rstrip("\r\n")) is not None
            (taken if is_one else kept).append(line)
        if len(taken) > MAX_LINES or sum(map(len, taken)) > MAX_CHARS:
            return text, ""
        return "".join(kept), "".join(taken).rstrip("\r\n")


def _is_as_sent(sent: list[Any], content: str) -> bool:
    """Whether the body's first message is this text, so that both are changed alike."""
    return bool(sent) and isinstance(sent[0], dict) and sent[0].get("content") == content


def _with_sorted_tools(request: ChatRequest) -> ChatRequest:
    """The tools by their names. Tools that share a name, or stand where the conversation loads
    them, are left alone.
    """
    tools, raw_tools = request.tools, request.raw.get("tools")
    names = [_name_of(tool) for tool in tools]
    if request.shown_tools is not None or not isinstance(raw_tools, list) or not all(names):
        return request
    if names == sorted(names) or len(set(names)) != len(names):
        return request
    raw_names = [_name_of(tool) for tool in raw_tools]
    if sorted(raw_names) != sorted(names):
        return request
    return msgspec.structs.replace(
        request,
        tools=tuple(_sorted(tools)),
        raw={**request.raw, "tools": _sorted(raw_tools)},
    )


def _sorted(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(tools, key=_name_of)


def _name_of(tool: object) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""
