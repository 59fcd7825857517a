"""What of a request an engine is asked to enforce, and what happens where it cannot."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.api import chat_request
from gateway.routing.breaker import FAILURES
from gateway.turn import grammars
from protocol.messages import ENFORCES_GRAMMARS, Grammar, Submit
from tests.fakes.running_gateway import open_gateway, wait_until
from tests.fakes.text_files import make_tokenizer
from tests.fakes.tool_answers import OTHER, TOOL
from tests.fakes.worker import FakeWorker, open_worker

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
STRICT = {
    "type": "json_schema",
    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
}
LOOSE = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
STRICT_TOOL: Any = {**TOOL, "function": {**TOOL["function"], "strict": True}}
NAMED = {"type": "function", "function": {"name": "f"}}


def _able(text: str = '{"a": 1}') -> FakeWorker:
    worker = FakeWorker(text=text)
    worker.facts = msgspec.structs.replace(worker.facts, capabilities=(ENFORCES_GRAMMARS,))
    return worker


async def _grammar(**fields: Any) -> Grammar | None:
    """What the worker is asked to enforce."""
    worker = _able()
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        await gateway.ask(**fields)
        return (await worker.wait(Submit)).grammar


async def test_most_requests_have_none() -> None:
    """Tools that are not strict leave the model free."""
    assert await _grammar() is None
    assert await _grammar(tools=[TOOL]) is None


@pytest.mark.parametrize("wanted", [STRICT, LOOSE, {"type": "json_object"}])
async def test_it_begins_where_the_answer_begins(wanted: Any) -> None:
    """The model may think first, or not."""
    tokenizer = make_tokenizer()
    grammar = await _grammar(response_format=wanted)
    assert grammar is not None
    assert grammar.kind == "json_schema"
    assert grammar.closing_id == tokenizer.token_to_id("</think>")
    assert grammar.opening_id == tokenizer.token_to_id("<think>")


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"tool_choice": NAMED}, 'start: " "? arguments_0 end'),
        ({"tool_choice": "required"}, "start: named end"),
        ({}, "start: TEXT (call TEXT)*"),
        ({"response_format": STRICT}, "start: content | call"),
    ],
)
async def test_strict_tools_are_enforced_in_the_models_format(fields: Any, start: str) -> None:
    """Strict tools are enforced in the model's format, from where the prompt ends."""
    grammar = await _grammar(tools=[STRICT_TOOL, OTHER], **fields)
    assert grammar is not None
    assert grammar.kind == "lark"
    assert grammar.text.startswith(start)
    assert (grammar.closing_id is None) == ("tool_choice" in fields)


async def test_arguments_that_may_be_null_by_their_schema_are_an_object() -> None:
    """Converters of OpenAPI write `nullable` at all parameters as one too; within, it counts."""
    parameters = {
        "type": "object",
        "nullable": True,
        "properties": {"a": {"type": "integer", "nullable": True}},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    grammar = await _grammar(tools=[tool], tool_choice=NAMED)
    assert grammar is not None
    line = next(one for one in grammar.text.splitlines() if one.startswith("arguments_0:"))
    schema = msgspec.json.decode(line.partition("%json ")[2])
    assert schema["type"] == "object"
    assert schema["properties"]["a"]["type"] == ["integer", "null"]


OF_OBJECTS: dict[str, dict[str, Any]] = {
    "a list of types": {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}},
    "no type": {"properties": {"a": {"type": "integer"}}},
    "alternatives": {"anyOf": [{"type": "object"}, {"type": "null"}]},
}


@pytest.mark.parametrize("kind", sorted(OF_OBJECTS))
async def test_arguments_are_an_object_whatever_their_schema_says(kind: str) -> None:
    """Null or a number is no call that a client can make."""
    tool = {"type": "function", "function": {"name": "f", "parameters": OF_OBJECTS[kind]}}
    grammar = await _grammar(tools=[tool], tool_choice=NAMED)
    assert grammar is not None
    line = next(one for one in grammar.text.splitlines() if one.startswith("arguments_0:"))
    assert msgspec.json.decode(line.partition("%json ")[2])["type"] == "object"


async def test_an_engine_may_enforce_some_forms() -> None:
    """A schema goes there, calls of strict tools are left to the model, the rest is refused."""
    worker = FakeWorker(text='{"a": 1}')
    able = (f"{ENFORCES_GRAMMARS}:json_schema", f"{ENFORCES_GRAMMARS}:choice")
    worker.facts = msgspec.structs.replace(worker.facts, capabilities=able)
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        await gateway.ask(response_format=STRICT)
        grammar = (await worker.wait(Submit)).grammar
        assert grammar is not None
        assert grammar.kind == "json_schema"
        await gateway.ask(guided_choice=["a", "b"])
        await gateway.ask(tools=[STRICT_TOOL])
        kinds = [submit.grammar and submit.grammar.kind for submit in worker.all_of(Submit)]
        assert kinds == ["json_schema", "lark", None]
        refused = await gateway.ask(guided_regex="a+")
        assert refused.error is not None
        assert (refused.error.status, refused.error.code) == (400, "grammar_not_served")


async def test_without_the_capability_words_must_do() -> None:
    """What only asks for JSON goes on as before; what demands it is refused by name."""
    worker = FakeWorker(text='{"a": 1}')
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        assert (await gateway.ask(response_format=LOOSE)).text == '{"a": 1}'
        assert (await worker.wait(Submit)).grammar is None
        for fields in ({"response_format": STRICT}, {"guided_regex": "a"}):
            refused = await gateway.ask(**fields)
            assert refused.error is not None
            assert (refused.error.status, refused.error.code) == (400, "grammar_not_served")


async def test_a_refusal_of_the_engine_is_a_400_with_the_reason() -> None:
    """A refusal of the engine is a 400 with the reason, before the first byte."""
    worker = _able()
    worker.rejections.append("grammar")
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        refused = await gateway.ask(guided_regex="(")
        assert refused.error is not None
        assert (refused.error.status, refused.error.code) == (400, "invalid_grammar")
        assert refused.error.param == "guided_regex"


async def test_a_grammar_that_breaks_later_is_the_request_s_fault() -> None:
    """One clear error with the text so far before it; no other engine is asked, and the worker's
    breaker learns nothing.
    """
    worker = _able('{"a": 1, "b": 2}')
    worker.pause_after = 4
    why = "the grammar cannot be followed: no token can follow"
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        for num_asked in range(1, 1 + FAILURES):
            asked = gateway.start(guided_regex="x+", stream=True)
            await asked.wait_text(3)
            (sequence,) = worker.running.values()
            worker.finish(sequence, "grammar", why)
            await wait_until(asked.over.is_set)
            assert asked.error is not None
            assert (asked.error.status, asked.error.code) == (400, "invalid_grammar")
            assert why in asked.error.message
            assert len(worker.all_of(Submit)) == num_asked
        assert gateway.services.feed.counts["breaker open"] == 0


async def test_a_grammar_that_breaks_on_a_resume_says_why() -> None:
    """The next worker refuses the tokens so far; that is no lost connection."""
    worker = _able('{"a": 1, "b": 2}')
    worker.pause_after = 4
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        asked = gateway.start(guided_regex="x+", stream=True)
        await asked.wait_text(3)
        worker.rejections.append("grammar")
        (sequence,) = worker.running.values()
        worker.finish(sequence, "error", "out of memory")
        await wait_until(asked.over.is_set)
        assert asked.error is not None
        assert asked.error.code == "invalid_grammar"


async def test_what_the_log_was_told_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a model in it is a client's, by an alias with a wildcard."""
    monkeypatch.setattr(grammars, "_MOST_TOLD", 4)
    monkeypatch.setattr(grammars, "_told", set())
    form = SimpleNamespace(tools=None)
    for number in range(20):
        request = chat_request(
            {
                "model": f"claude-{number}",
                "messages": [{"role": "user", "content": "x"}],
                "tools": [STRICT_TOOL],
            }
        )
        grammars._tell_of_format(request, form)  # type: ignore[arg-type]
        assert len(grammars._told) <= 4
