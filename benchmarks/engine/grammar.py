"""The cost of grammars: the masks of a decode step, and the wait of others while a grammar is
compiled.

Owns the schemas and the two comparisons, each with the same requests without a grammar. Must not
know how a grammar is compiled.
"""

import json
import random
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from benchmarks.engine.cases import EngineBench
from benchmarks.engine.client import EngineAnswer, EngineRequest
from benchmarks.engine.figure import EngineFigure
from benchmarks.engine.peer import EngineBar
from protocol.messages import Grammar

SCHEMA_BYTES: Final = 4_096

_BARS: Final = {1: EngineBar(must=3.0), 64: EngineBar(must=5.0)}
"""Per cent of a decode step of the 8B shape, by batch."""

_MOST_STEPS: Final = 1.0
"""The most steps that others may wait longer for a token while a grammar is compiled."""

_KINDS: Final = ("small", "large", "round", "other")


def grammar(bench: EngineBench) -> Iterator[EngineFigure]:
    """Decode steps with and without masks, then a request with a new schema among others."""
    for batch in bench.scale.grammar_batches:
        yield from _masks(bench, batch)
    yield from _joining(bench)


def _masks(bench: EngineBench, batch: int) -> Iterator[EngineFigure]:
    """Decode steps in which all rows have one schema, which no answer completes; each row draws its
    own text.
    """
    scale = bench.scale
    length, outputs = scale.decode_prompt, scale.grammar_outputs
    prompts = bench.prompts(f"grammar {batch}", batch, length)
    shared = _grammar("masks")
    steps: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(1 + scale.runs):
        for is_masked, values in steps.items():
            salt = bench.salt()
            _, seconds = bench.client.call(
                [
                    EngineRequest(prompt, outputs, 1.0, seed, salt, shared if is_masked else None)
                    for seed, prompt in enumerate(prompts)
                ]
            )
            values.append(1e3 * seconds / outputs)
    plain, masked = (tuple(steps[is_masked][1:]) for is_masked in (False, True))
    name = f"decode, {length} in + {outputs} out, T = 1, batch {batch}"
    yield EngineFigure(f"grammar-{batch}-plain", f"{name}, free", "ms/step", plain)
    yield EngineFigure(f"grammar-{batch}-masked", f"{name}, masked", "ms/step", masked)
    cost = tuple(
        100 * (with_masks / without - 1) for with_masks, without in zip(masked, plain, strict=True)
    )
    yield EngineFigure(
        f"grammar-{batch}", f"cost of masks, batch {batch}", "%", cost, None, _bar(bench, batch)
    )


def _bar(bench: EngineBench, batch: int) -> EngineBar:
    return _BARS.get(batch, EngineBar()) if bench.floor is not None else EngineBar()


def _joining(bench: EngineBench) -> Iterator[EngineFigure]:
    """The longest wait of running sequences for a token around a request that joins them, without a
    grammar and with a new one. The first run of each is not counted.
    """
    scale = bench.scale
    waits: dict[bool, list[float]] = {False: [], True: []}
    step_ms = 0.0
    for run in range(1 + scale.runs):
        for has_schema, values in waits.items():
            fresh = _grammar(f"joining {run}") if has_schema else None
            step_ms, longest_ms = _longest_wait(bench, fresh)
            values.append(longest_ms)
    plain, fresh_schema = (tuple(waits[has_schema][1:]) for has_schema in (False, True))
    num = scale.grammar_beside
    name = f"longest wait of {num} for a token, a request joins"
    yield EngineFigure("grammar-joins-plain", f"{name}, free", "ms", plain)
    name = f"{name}, new schema of {SCHEMA_BYTES} bytes"
    yield EngineFigure("grammar-joins", name, "ms", fresh_schema)
    more = tuple(
        (longest - without) / step_ms for longest, without in zip(fresh_schema, plain, strict=True)
    )
    bar = EngineBar(must=_MOST_STEPS) if bench.floor is not None else EngineBar()
    yield EngineFigure("grammar-joins-steps", "longer by the schema", "steps", more, None, bar)


def _longest_wait(bench: EngineBench, fresh: Grammar | None) -> tuple[float, float]:
    """The median and the longest wait, in milliseconds."""
    scale, client = bench.scale, bench.client
    outputs = scale.grammar_outputs
    prompts = bench.prompts("beside", scale.grammar_beside + 1, scale.decode_prompt)
    salt = bench.salt()
    client.answers = {}
    beside = client.submit([EngineRequest(prompt, outputs, salt=salt) for prompt in prompts[1:]])
    while min(len(client.answers[number].outputs) for number in beside) < outputs // 4:
        client.wait(0.001)
    late = client.submit([EngineRequest(prompts[0], 2, salt=salt, grammar=fresh)], keeps_clock=True)
    while not all(client.answers[number].ending for number in (*beside, *late)):
        client.wait(0.01)
    waits = [wait for number in beside for wait in _waits(client.answers[number])]
    return 1e3 * statistics.median(waits), 1e3 * max(waits)


def _waits(answer: EngineAnswer) -> Iterator[float]:
    """Seconds between tokens, without the first steps, in which sequences still begin."""
    times = answer.times_s[len(answer.times_s) // 8 :]
    return (later - earlier for earlier, later in pairwise(times))


def _grammar(name: str) -> Grammar:
    """An array of many objects, each of a schema of `SCHEMA_BYTES` with names of its own."""
    rng = random.Random(name)
    properties: dict[str, Any] = {}
    while len(json.dumps(properties)) < SCHEMA_BYTES:
        properties[f"field_{rng.randrange(10**6)}"] = _properties()
    record = _closed(properties, list(properties))
    schema = {"type": "array", "minItems": 64, "items": record}
    return Grammar("json_schema", json.dumps(schema))


def _properties() -> dict[str, Any]:
    return _closed(
        {
            "name": {"type": "string", "maxLength": 40},
            "count": {"type": "integer", "minimum": 0, "maximum": 9_999},
            "kind": {"enum": list(_KINDS)},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
            "day": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
        },
        ["name", "count", "kind"],
    )


def _closed(properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
