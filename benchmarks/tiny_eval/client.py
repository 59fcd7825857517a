"""Chat completions over HTTP, many at a time.

Owns the requests and the answers. Must not know which answer is right.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import trio

MAX_TOKENS: Final = 512
TIMEOUT_S: Final = 3600


@dataclass(frozen=True, slots=True)
class EvaluatedServer:
    """The server: `url` ends in /v1."""

    url: str
    model: str
    concurrency: int
    stream: bool


@dataclass(frozen=True, slots=True)
class EvaluatedAnswer:
    """One choice; `tool_calls` as in the OpenAI API. `finish_reason` "length": it was cut off."""

    text: str
    tool_calls: tuple[dict[str, Any], ...]
    finish_reason: str


async def ask_all(
    server: EvaluatedServer, requests: Sequence[dict[str, Any]], done: Callable[[int], None]
) -> list[EvaluatedAnswer]:
    """The answers in the order of `requests` (messages and tools). Any failure raises."""
    answers: dict[int, EvaluatedAnswer] = {}
    left = iter(enumerate(requests))
    limits = httpx.Limits(max_connections=server.concurrency)

    async def ask_next(client: httpx.AsyncClient) -> None:
        for index, request in left:
            answers[index] = await _ask(client, server, request)
            done(len(answers))

    async with (
        httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client,
        trio.open_nursery() as nursery,
    ):
        for _ in range(server.concurrency):
            nursery.start_soon(ask_next, client)
    return [answers[index] for index in range(len(requests))]


async def _ask(
    client: httpx.AsyncClient, server: EvaluatedServer, request: dict[str, Any]
) -> EvaluatedAnswer:
    body = {
        "model": server.model,
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": server.stream,
        "messages": as_sent(request["messages"]),
    }
    if request.get("tools"):
        body["tools"] = list(request["tools"])
    url = f"{server.url.rstrip('/')}/chat/completions"
    if server.stream:
        return await _streamed(client, url, body)
    reply = await client.post(url, json=body)
    _check(reply)
    choice = reply.json()["choices"][0]
    message = choice["message"]
    calls = tuple(call["function"] for call in message.get("tool_calls") or ())
    return EvaluatedAnswer(message.get("content") or "", calls, choice["finish_reason"])


async def _streamed(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> EvaluatedAnswer:
    text, reason = "", ""
    calls: dict[int, dict[str, Any]] = {}
    async with client.stream("POST", url, json=body) as reply:
        if reply.status_code != httpx.codes.OK:
            await reply.aread()
        _check(reply)
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"the stream broke: {event['error']}")
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                reason = choice.get("finish_reason") or reason
                _add_calls(calls, choice["delta"].get("tool_calls") or ())
    if not reason:
        raise RuntimeError("a stream ended without a finish_reason")
    return EvaluatedAnswer(text, tuple(calls[index] for index in sorted(calls)), reason)


def _add_calls(calls: dict[int, dict[str, Any]], deltas: Sequence[dict[str, Any]]) -> None:
    for delta in deltas:
        call = calls.setdefault(delta["index"], {"name": "", "arguments": ""})
        function = delta.get("function") or {}
        call["name"] = function.get("name") or call["name"]
        call["arguments"] += function.get("arguments") or ""


def as_sent(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as clients send them: calls have ids, and their arguments are JSON text."""
    sent: list[dict[str, Any]] = []
    call_id = ""
    for number, message in enumerate(messages):
        one = dict(message)
        if message.get("tool_calls"):
            call_id = f"call_{number}_0"
            one["tool_calls"] = [
                {
                    "id": f"call_{number}_{place}",
                    "type": "function",
                    "function": {
                        "name": call["function"]["name"],
                        "arguments": json.dumps(call["function"]["arguments"]),
                    },
                }
                for place, call in enumerate(message["tool_calls"])
            ]
        elif message["role"] == "tool":
            one["tool_call_id"] = call_id
        sent.append(one)
    return sent


def _check(reply: httpx.Response) -> None:
    if reply.status_code != httpx.codes.OK:
        raise RuntimeError(f"HTTP {reply.status_code} from {reply.url}: {reply.text[:500]}")
