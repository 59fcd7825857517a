"""Streams of chat completions, timed at the client.

Owns the requests and the clock. Must not share a prompt between requests: a prefix hit would
measure something else.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import trio

WORDS = ("river", "stone", "gate", "lamp", "ship", "market", "winter", "letter", "bridge", "song")
PROMPT_WORDS = 300
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: seconds to the first content, and tokens by the server's own usage."""

    first_token_s: float
    prompt_tokens: int
    output_tokens: int


async def run_streams(
    base_url: str, concurrency: int, num_requests: int, tokens: int, done: Callable[[int], None]
) -> list[Sample]:
    """Answer `num_requests` streams, `concurrency` at a time. Any failure raises."""
    samples: list[Sample] = []
    numbers = iter(range(num_requests))
    limits = httpx.Limits(max_connections=concurrency)

    async def stream_next(client: httpx.AsyncClient) -> None:
        for number in numbers:
            samples.append(await _stream(client, base_url, f"{concurrency}-{number}", tokens))
            done(len(samples))

    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client:
        await _stream(client, base_url, f"{concurrency}-warm", tokens)
        async with trio.open_nursery() as nursery:
            for _ in range(concurrency):
                nursery.start_soon(stream_next, client)
    return samples


async def _stream(client: httpx.AsyncClient, base_url: str, name: str, tokens: int) -> Sample:
    body = {
        "model": "herma-tiny",
        "messages": [{"role": "user", "content": _prompt(name)}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started_at = time.perf_counter()
    first_token_s, usage = None, None
    async with client.stream("POST", f"{base_url}/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if first_token_s is None and any(c["delta"].get("content") for c in event["choices"]):
                first_token_s = time.perf_counter() - started_at
    if first_token_s is None or usage is None or usage["completion_tokens"] != tokens:
        raise RuntimeError(f"request {name} came back incomplete: {usage}")
    return Sample(first_token_s, usage["prompt_tokens"], usage["completion_tokens"])


def _prompt(name: str) -> str:
    """Text that differs from its first words on, so that no block of it is shared."""
    start = sum(map(ord, name))
    words = (WORDS[(start + i * i) % len(WORDS)] for i in range(PROMPT_WORDS))
    return f"Story {name}: {' '.join(words)}"
