"""Streams of chat completions, timed at the client.

Owns the requests and the clock. No two requests share a prompt, because a prefix hit would measure
something else.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import trio

WORDS = ("river", "stone", "gate", "lamp", "ship", "market", "winter", "letter", "bridge", "song")
PROMPT_WORDS = 300
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class ServingSample:
    """One answer: seconds to its first text or reasoning, tokens by the server's usage, and its
    start and end by `time.perf_counter`.
    """

    first_token_s: float
    prompt_tokens: int
    output_tokens: int
    started_at: float
    ended_at: float


def tokens_per_s(samples: Sequence[ServingSample]) -> float:
    """Output tokens over the time from the first request to the last answer's end."""
    wall_s = max(one.ended_at for one in samples) - min(one.started_at for one in samples)
    return sum(one.output_tokens for one in samples) / wall_s


async def run_streams(
    base_url: str,
    concurrency: int,
    num_requests: int,
    tokens: int,
    done: Callable[[int], None],
    prompt_words: int = PROMPT_WORDS,
    run: str = "",
) -> list[ServingSample]:
    """Answer `num_requests` streams, `concurrency` at a time. Runs of different names have
    different prompts. Any failure raises.
    """
    samples: list[ServingSample] = []
    numbers = iter(range(num_requests))
    limits = httpx.Limits(max_connections=concurrency)

    async def stream_next(client: httpx.AsyncClient) -> None:
        for number in numbers:
            prompt = _prompt(f"{run}{concurrency}-{number}", prompt_words)
            samples.append(await _stream(client, base_url, prompt, tokens))
            done(len(samples))

    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client:
        await _stream(client, base_url, _prompt(f"{run}{concurrency}-warm", prompt_words), tokens)
        async with trio.open_nursery() as nursery:
            for _ in range(concurrency):
                nursery.start_soon(stream_next, client)
    return samples


async def _stream(
    client: httpx.AsyncClient, base_url: str, prompt: str, tokens: int
) -> ServingSample:
    body = {
        "model": "herma-tiny",
        "messages": [{"role": "user", "content": prompt}],
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
            if first_token_s is None and any(says_something(c["delta"]) for c in event["choices"]):
                first_token_s = time.perf_counter() - started_at
    ended_at = time.perf_counter()
    if first_token_s is None or usage is None or usage["completion_tokens"] != tokens:
        raise RuntimeError(f"{prompt[:16]!r} came back incomplete: {usage}")
    counts = usage["prompt_tokens"], usage["completion_tokens"]
    return ServingSample(first_token_s, *counts, started_at, ended_at)


def says_something(delta: dict[str, Any]) -> bool:
    """Whether a stream's event holds text, reasoning or a call."""
    return any(delta.get(key) for key in ("content", "reasoning_content", "tool_calls"))


def _prompt(name: str, num_words: int) -> str:
    """Text that differs from its first words on, so that no block is shared."""
    start = sum(map(ord, name))
    words = (WORDS[(start + i * i) % len(WORDS)] for i in range(num_words))
    return f"Story {name}: {' '.join(words)}"
