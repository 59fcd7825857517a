"""1,000 interleaved conversations in the shapes that clients send, read by the parsers of the APIs.

Claude Code: Messages, `metadata.user_id` as JSON. codex: `session-id`, and `x-openai-subagent` of a
child. opencode: `x-session-affinity`, and `x-parent-session-id` of a child. aiperf: a correlation
id beside it. AgentX: that id alone. Hermes Agent: no name, ids of calls are its own. OpenClaw: no
name, and a clock in the system prompt.
"""

import random
from typing import Any

import msgspec
import pytest

from gateway.api import ChatRequest, parse_any_chat, parse_messages
from gateway.api.signatures import Signer
from gateway.conversations import ConversationBook, KnownConversation, TurnEnd, named_by

SIGNER = Signer(b"k" * 32)
TASKS = ("Mend the build.", "Write a test.", "Go on.", "Why is it slow?")
CLIENTS = ("claude-cli", "codex", "opencode", "aiperf", "agentx", "hermes-agent", "openclaw")
Header = tuple[bytes, bytes]


class Agent:
    """One conversation of a client, or a child of `parent`."""

    def __init__(self, number: int, random_: random.Random, parent: "Agent | None" = None) -> None:
        self.client = CLIENTS[number % len(CLIENTS)] if parent is None else parent.client
        self.name = f"{number:08d}-aaaa-4bbb-8ccc-dddddddddddd"
        self.parent = parent
        self._random = random_
        self._turn = 0
        task = random_.choice(TASKS)
        where = f" In /src/{random_.getrandbits(32):08x}."
        self._said: list[dict[str, Any]] = [{"role": "user", "content": task + where}]

    def next(self) -> tuple[ChatRequest, tuple[Header, ...]]:
        self._turn += 1
        request = self._messages() if self.client == "claude-cli" else self._chat()
        if self.client != "claude-cli":
            self._call()
        else:
            text = f"Done {self._random.getrandbits(48):x}."
            self._said += [{"role": "assistant", "content": text}]
            self._said += [{"role": "user", "content": self._random.choice(TASKS)}]
        return request, self._headers()

    def _call(self) -> None:
        call = f"call_{self._random.getrandbits(64):x}"
        function = {"name": "read_file", "arguments": '{"path": "a.py"}'}
        calls = [{"id": call, "type": "function", "function": function}]
        self._said += [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": call, "content": "pass"},
        ]

    def _messages(self) -> ChatRequest:
        user = {"device_id": "d", "account_uuid": "", "session_id": self.name}
        body = {
            "model": "alpha",
            "max_tokens": 64,
            "system": [{"type": "text", "text": "You are Claude Code."}],
            "messages": self._said,
            "metadata": {"user_id": msgspec.json.encode(user).decode()},
        }
        return parse_messages(msgspec.json.encode(body), SIGNER, None)

    def _chat(self) -> ChatRequest:
        clock = f" Now: 10:{self._turn:02d}:00." if self.client == "openclaw" else ""
        system = {"role": "system", "content": f"You are {self.client}.{clock}"}
        body = {"model": "alpha", "messages": [system, *self._said], "stream": True}
        if self.client == "codex":
            body["prompt_cache_key"] = self.name
        return parse_any_chat(msgspec.json.encode(body), SIGNER, None)

    def _headers(self) -> tuple[Header, ...]:
        name, parent = self.name.encode(), self.parent.name.encode() if self.parent else b""
        match self.client:
            case "codex" if parent:
                return (b"session-id", parent), (b"x-openai-subagent", b"review-" + name)
            case "codex":
                return (b"session-id", name), (b"thread-id", name)
            case "opencode" if parent:
                return (b"x-session-affinity", name), (b"x-parent-session-id", parent)
            case "opencode":
                return (b"x-session-affinity", name), (b"x-session-id", name)
            case "aiperf":
                return (b"x-session-affinity", name), (b"x-correlation-id", name)
            case "agentx":
                return ((b"x-correlation-id", name),)
            case _:
                return ((b"user-agent", self.client.encode()),)


@pytest.mark.parametrize("seed", [1, 2])
def test_1000_interleaved_conversations_are_told_apart(seed: int) -> None:
    random_, book = random.Random(seed), ConversationBook()
    agents = [Agent(number, random_) for number in range(900)]
    with_children = [one for one in agents if one.client in {"codex", "opencode"}][:100]
    agents += [Agent(1000 + at, random_, one) for at, one in enumerate(with_children)]
    turns = [one for one in agents for _ in range(random_.randint(1, 6))]
    random_.shuffle(turns)
    owners: dict[str, dict[int, KnownConversation]] = {}
    for at, agent in enumerate(turns):
        request, headers = agent.next()
        visit = book.enter(
            named_by(dict(headers), request), "key", agent.client, request, float(at)
        )
        assert visit is not None
        book.leave(visit, float(at), TurnEnd())
        owners.setdefault(agent.name, {})[id(visit.conversation)] = visit.conversation
    assert {len(found) for found in owners.values()} == {1}
    assert len({next(iter(found)) for found in owners.values()}) == len(owners)
    for agent in agents:
        if agent.parent is not None and agent.name in owners:
            (conversation,) = owners[agent.name].values()
            assert conversation.parent == agent.parent.name
