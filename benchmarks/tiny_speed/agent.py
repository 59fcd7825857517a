"""An agent's first call to the built-in model: 49 KB with 17 tools, twice."""

import json
import time
from dataclasses import dataclass
from typing import Any, Final

import httpx

from benchmarks.serving.client import says_something
from benchmarks.tiny_eval.outside import MAX_AGENT_RULES, agent_request

TASK: Final = "Make the tests twice as fast."
MAX_TOKENS: Final = 64
TIMEOUT_S: Final = 600
_ENDS: Final = ("stop", "tool_calls", "length")


@dataclass(frozen=True, slots=True)
class AgentSample:
    """One streamed answer: sizes as sent and as the server counted, seconds at the client."""

    body_bytes: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_token_s: float
    total_s: float


def ask_agent(base_url: str) -> AgentSample:
    """Raises `RuntimeError` unless the stream ends as a complete answer."""
    body = json.dumps(_body()).encode()
    first_token_s, usage, reason = 0.0, None, None
    started_at = time.perf_counter()
    with httpx.stream(
        "POST",
        f"{base_url}/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
        timeout=TIMEOUT_S,
    ) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"the stream broke: {event['error']}")
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if not first_token_s and says_something(choice["delta"]):
                    first_token_s = time.perf_counter() - started_at
                reason = choice["finish_reason"] or reason
    total_s = time.perf_counter() - started_at
    if reason not in _ENDS or usage is None or not first_token_s:
        raise RuntimeError(f"the answer came back incomplete: {reason}, {usage}")
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    counts = usage["prompt_tokens"], cached, usage["completion_tokens"]
    return AgentSample(len(body), *counts, first_token_s, total_s)


def _body() -> dict[str, Any]:
    return agent_request(TASK, MAX_AGENT_RULES) | {
        "model": "herma-tiny",
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
