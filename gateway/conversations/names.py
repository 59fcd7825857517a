"""Names: what a client says of the conversation that a request belongs to.

Owns which headers and fields name a conversation and the one that began it, and how far each name
is to be trusted. Must not know which conversations there are.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gateway.api import MAX_SESSION_CHARS, ChatRequest

STRONG: Final = (
    b"x-session-id",
    b"x-claude-code-session-id",
    b"x-opencode-session",
    b"x-session-affinity",
    b"x-affinity",
    b"thread-id",  # before the session: codex's subagents have a thread each in one session
    b"session-id",
    b"session_id",
    b"conversation_id",
    b"x-hermes-session-id",
    b"x-hermes-affinity-key",
    b"x-litellm-session-id",
)
_WEAK: Final = (b"x-correlation-id", b"x-client-request-id")
"""Clients name a conversation by them (aiperf, AgentX, codex), but proxies and SDKs make a new one
for each request. So a new weak name gives way to the conversation that a prompt continues.
"""
WEAK_SOURCES: Final = tuple(name.decode() for name in _WEAK)
_PARENTS: Final = (
    b"x-parent-session-id",
    b"x-codex-parent-thread-id",
    b"x-parent-thread-id",
    b"x-hermes-parent-session-id",
    b"x-claude-code-parent-session-id",
    b"x-parent-correlation-id",
    b"x-litellm-parent-session-id",
)
_AGENTS: Final = (b"x-claude-code-agent-id", b"x-agent-id", b"x-openai-subagent")
"""Agents that share the name of one conversation: each is a conversation below it."""
_NAMING: Final = frozenset((*STRONG, *_WEAK, *_PARENTS, *_AGENTS))
_FIELDS: Final = frozenset({"metadata", "session_params", "user", "nvext", "parent_session_id"})
_USER_ID: Final = re.compile(r"_session_([0-9A-Za-z-]{8,64})\Z")
"""The end of Claude Code's `metadata.user_id`: user_HASH_account_UUID_session_UUID."""
_PARENT_FIELDS: Final = ("parent_session_id", "parent_thread_id", "parent_id")


class ClientNames(NamedTuple):
    """What the client says; empty texts: nothing. `is_weak`: see `_WEAK`. `source` is the header or
    field.
    """

    name: str = ""
    parent: str = ""
    source: str = ""
    is_weak: bool = False


NO_NAMES: Final = ClientNames()


def named_by(sent: Mapping[bytes, bytes], request: ChatRequest) -> ClientNames:
    """The names in the headers (by lower-case names) and in the body."""
    raw = request.raw
    is_in_headers = not _NAMING.isdisjoint(sent)
    if not is_in_headers and request.session is None and _FIELDS.isdisjoint(raw):
        return NO_NAMES
    parent = _first(sent, _PARENTS)[0] or _parent_of(raw)
    name, source = _first(sent, STRONG)
    is_weak = False
    if not name:
        name, source = _of_body(request)
    if not name:
        name, source = _first(sent, _WEAK)
        is_weak = True
    agent, agent_source = _first(sent, _AGENTS)
    if agent and name and not parent and agent != name:
        return ClientNames(f"{name}/{agent}"[:MAX_SESSION_CHARS], name, agent_source)
    return ClientNames(name, "" if parent == name else parent, source, is_weak)


def _first(sent: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> tuple[str, str]:
    for name in names:
        if value := sent.get(name):
            return value.decode("latin-1")[:MAX_SESSION_CHARS], name.decode()
    return "", ""


def _of_body(request: ChatRequest) -> tuple[str, str]:
    """The conversation that the body names. `user` is a person, who has many conversations."""
    raw = request.raw
    given = raw.get("session_params")
    inner = given.get("id") if isinstance(given, dict) else None
    if isinstance(inner, str) and inner:
        return inner[:MAX_SESSION_CHARS], "session_params.id"
    name = request.session
    if not name:
        return "", ""
    if (match := _USER_ID.search(name)) is not None:
        return match[1], "metadata.user_id"
    if name == raw.get("user"):
        return "", ""
    cache_key = raw.get("prompt_cache_key")
    return name, "prompt_cache_key" if name == cache_key else "session_id"


def _parent_of(raw: Mapping[str, Any]) -> str:
    hints = raw.get("nvext")
    inner = hints.get("agent_context") if isinstance(hints, dict) else None
    for table in (raw.get("metadata"), inner, raw):
        if not isinstance(table, dict):
            continue
        for field in _PARENT_FIELDS:
            value = table.get(field)
            if isinstance(value, str) and value:
                return value[:MAX_SESSION_CHARS]
    return ""
