"""The requests of the prompt path's benchmark.

Owns bodies made of English words by a fixed seed. Must not measure.
"""

import json
import random
from dataclasses import dataclass
from typing import Any, Final

MODEL: Final = "herma-tiny"
NUM_TOOLS: Final = 24
_TEXT: Final = (
    "the a of and to in is that it for was on are with as they be at this have from or one had by "
    "word but not what all were we when your can said there use an each which she do how their if "
    "will up other about out many then them these so some her would make like him into time has "
    "look two more write go see number no way could people my than first water been call who oil "
    "gateway sequence scheduler prefix tokenizer quantised latency throughput instrumentation "
    "server.py /var/log/syslog 127.0.0.1 42 1,024 x-request-id JSON `make test` (see below) naïve"
)


@dataclass(frozen=True, slots=True)
class Case:
    """`bodies` are measured, each once, when all of `before` have been prepared."""

    name: str
    before: tuple[bytes, ...]
    bodies: tuple[bytes, ...]


def all_cases(num_bodies: int) -> tuple[Case, ...]:
    """The three cases, the first two of `num_bodies` requests."""
    rng = random.Random(11)
    return (
        _repeated(rng, num_bodies),
        _fresh(rng, num_bodies),
        _second_turn(rng, num_bodies=max(1, num_bodies // 10)),
    )


def _repeated(rng: random.Random, num_bodies: int) -> Case:
    body = _body([_user(rng, 900)], max_tokens=16)
    return Case("0.9 KB, repeated", (body,), (body,) * num_bodies)


def _fresh(rng: random.Random, num_bodies: int) -> Case:
    bodies = tuple(_body([_user(rng, 900)], max_tokens=16) for _ in range(num_bodies))
    return Case("0.9 KB, fresh", (_body([_user(rng, 900)], max_tokens=16),), bodies)


def _second_turn(rng: random.Random, num_bodies: int) -> Case:
    """An agent's call after a tool's result: 64 KiB, of which half is the conversation's own."""
    tools = [_tool(rng, number) for number in range(NUM_TOOLS)]
    system = {"role": "system", "content": prose(rng, 6_000)}
    before, bodies = [], []
    for _ in range(num_bodies):
        messages = [system]
        while len(_body(messages, tools=tools)) < 64 * 1024:
            messages += [_user(rng, 400), *_called(rng, 1_500), _assistant(rng, 300)]
        messages.append(_user(rng, 200))
        before.append(_body(messages, tools=tools, stream=True))
        bodies.append(_body([*messages, *_called(rng, 400)], tools=tools, stream=True))
    return Case("64 KiB, second turn", tuple(before), tuple(bodies))


def _body(messages: list[dict[str, Any]], **fields: Any) -> bytes:  # noqa: ANN401
    return json.dumps({"model": MODEL, "messages": messages, **fields}).encode()


def _user(rng: random.Random, num_chars: int) -> dict[str, Any]:
    return {"role": "user", "content": prose(rng, num_chars)}


def _assistant(rng: random.Random, num_chars: int) -> dict[str, Any]:
    return {"role": "assistant", "content": prose(rng, num_chars)}


def _called(rng: random.Random, num_chars: int) -> list[dict[str, Any]]:
    """A tool call and its result."""
    call_id = f"call_{rng.randrange(10**9)}"
    arguments = json.dumps({"path": f"/tmp/{rng.randrange(10**6)}.txt", "limit": 20})
    function = {"name": f"tool_{rng.randrange(NUM_TOOLS)}", "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": prose(rng, num_chars)},
    ]


def _tool(rng: random.Random, number: int) -> dict[str, Any]:
    properties: dict[str, dict[str, Any]] = {
        name: {"type": "string", "description": prose(rng, 120)} for name in ("path", "mode")
    }
    properties["limit"] = {"type": "integer", "minimum": 1, "description": prose(rng, 80)}
    function = {
        "name": f"tool_{number}",
        "description": prose(rng, 400),
        "parameters": {"type": "object", "properties": properties, "required": ["path"]},
    }
    return {"type": "function", "function": function}


def prose(rng: random.Random, num_chars: int) -> str:
    """English words, one after the other."""
    vocabulary = _TEXT.split()
    words: list[str] = []
    size = 0
    while size < num_chars:
        words.append(rng.choice(vocabulary))
        size += len(words[-1]) + 1
    return " ".join(words)[:num_chars]
