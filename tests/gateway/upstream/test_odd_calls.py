"""Calls that stand elsewhere than clients read them, or that an end cuts; and chunks of nothing."""

import json
from typing import Any

import pytest

from gateway.api import ChoiceFinished, Failed, ToolCallArguments, ToolCallEnd, UpstreamBody
from gateway.upstream.answer import NotAnAnswer, check_answer
from gateway.upstream.relay import StreamRelay
from gateway.upstream.stream_end import StreamEnd
from gateway.upstream.usage import StreamUsage
from tests.gateway.upstream.test_chat_events import read
from tests.gateway.upstream.test_stream_end import DONE, calls_in, chunk, part, passed, whole

FIRST = {"index": 0, "id": "a", "type": "function"}
OBJECT = {"q": "1"}
TEXT = '{"q":"1"}'


def whole_calls(*calls: dict[str, Any], finish: str = "tool_calls") -> Any:
    """The message of a whole answer with these calls, as the client gets it."""
    body = whole(finish, role="assistant", content=None, tool_calls=list(calls))
    choice = json.loads(check_answer(200, body, {}).body)["choices"][0]
    return choice["message"]["tool_calls"], choice["finish_reason"]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ({"name": "get", "arguments": OBJECT}, TEXT),
        ({"name": "get", "input": OBJECT}, TEXT),
        ({"name": "get", "parameters": OBJECT}, TEXT),
        ({"name": "get", "arguments": None, "parameters": {}}, "{}"),
        ({"name": "get", "arguments": "", "input": OBJECT}, "{}"),
        ({"name": "get", "input": "words"}, "{}"),
        ({"name": "get", "arguments": []}, "{}"),
        ({"name": "get", "arguments": {}}, "{}"),
        ({"name": "get", "arguments": False}, "{}"),
        ({"name": "get", "arguments": ["1"]}, '["1"]'),
    ],
)
@pytest.mark.parametrize("is_flat", [True, False])
def test_arguments_under_another_name(
    function: dict[str, Any], arguments: str, is_flat: bool
) -> None:
    """Without them a tool would be called with none; what is no object is not left out either. A
    chunk never has arguments that are no text, which clients add up as one.
    """
    call = {**FIRST, **function} if is_flat else {**FIRST, "function": function}
    found, error = passed(chunk(tool_calls=[call]), chunk("tool_calls"), DONE)
    assert error is None
    assert calls_in(found) == [{"id": "a", "name": "get", "arguments": arguments}]
    (told,), _ = whole_calls(call)
    assert told["function"] == {"name": "get", "arguments": arguments}
    assert not {"input", "parameters"} & told.keys()


def test_the_call_of_a_custom_tool_is_no_call() -> None:
    """No upstream is asked with such tools: they are functions there. What no client gets is no
    answer either.
    """
    custom = {**FIRST, "type": "custom", "custom": {"name": "run", "input": "ls"}}
    found, error = passed(chunk(tool_calls=[custom]), chunk("tool_calls"), DONE)
    assert error is not None
    assert b"custom" not in b"".join(found)
    with pytest.raises(NotAnAnswer, match="without a name"):
        whole_calls(custom)


@pytest.mark.parametrize("function", [True, False])
def test_a_call_that_a_filter_cuts_is_none(function: bool) -> None:
    """As one that a limit cuts: agents make calls as soon as these are said to be whole."""
    call = part(0, '{"q":', id="a", name="get")
    said = {"tool_calls": [call]} if function else {"function_call": call["function"]}
    events = [chunk(**said), chunk("content_filter"), DONE]
    found = read(*events)
    assert ToolCallEnd(0, 0, is_whole=False) in found
    assert found[-1] == ChoiceFinished(0, "content_filter")
    whole_end = read(chunk(tool_calls=[part(0, TEXT, id="a", name="get")]), *events[1:])
    assert ToolCallEnd(0, 0, is_whole=True) in whole_end


def test_a_whole_answer_that_a_filter_cuts_in_a_call_is_filtered() -> None:
    """It is no failure: if no other server answers, the client gets it."""
    call = part(None, '{"q":', id="a", name="get")
    checked = check_answer(200, whole("content_filter", tool_calls=[call]), {})
    assert checked.is_filtered
    (found,) = json.loads(checked.body)["choices"][0]["message"]["tool_calls"]
    assert found["function"]["arguments"] == '{"q":'
    got = read(UpstreamBody(200, checked.body))
    assert ToolCallEnd(0, 0, is_whole=False) in got


@pytest.mark.parametrize("finish", ["function_call", "stop"])
def test_a_call_in_the_older_form_that_breaks_off_is_a_failure(finish: str) -> None:
    """Responses would say that it is complete."""
    function = {"name": "get", "arguments": '{"q":'}
    found = read(chunk(function_call=function), chunk(finish), DONE)
    assert isinstance(found[-1], Failed)
    assert not any(isinstance(one, ToolCallEnd) for one in found)
    more = chunk(function_call={"arguments": '"1"}'})
    found = read(chunk(function_call=function), more, chunk(finish), DONE)
    assert [one.text for one in found if isinstance(one, ToolCallArguments)] == ['{"q":', '"1"}']
    assert found[-1] == ChoiceFinished(0, "tool_calls")


def relayed(*events: bytes, is_raw: bool = False, is_ours: bool = False) -> list[bytes]:
    """What a client gets of the stream of a chat, or of a raw prompt."""
    found: list[bytes] = []
    usage = StreamUsage(lambda _: None, is_ours=is_ours)
    relay = StreamRelay(
        found.append, usage, lambda: True, StreamEnd(), is_chat=not is_raw, is_raw=is_raw
    )
    for one in events:
        if not relay.pass_single(one):
            relay.take(one)
    return found


USAGE = {"prompt_tokens": 5, "completion_tokens": 2}


@pytest.mark.parametrize("is_raw", [True, False])
@pytest.mark.parametrize("spaces", [True, False])
def test_choices_that_are_null_reach_no_client(is_raw: bool, spaces: bool) -> None:
    """Clients walk through them. A chunk with the usage has none; one with nothing is left out."""
    separators = (", ", ": ") if spaces else (",", ":")

    def event(**fields: Any) -> bytes:
        return b"data: " + json.dumps(fields, separators=separators).encode() + b"\n\n"

    said = {"text": "a"} if is_raw else {"delta": {"content": '"choices": null'}}
    begun = event(choices=[{"index": 0, **said}], x={"choices": None})
    end = event(
        choices=[
            {"index": 0, **({"text": ""} if is_raw else {"delta": {}}), "finish_reason": "stop"}
        ]
    )
    nothing = event(id="x", choices=None, base_resp={"status_code": 0})
    unsaid = event(id="x", choices=None, usage=None)
    counted = event(id="x", choices=None, usage=USAGE)
    found = relayed(begun, nothing, unsaid, nothing, end, counted, DONE, is_raw=is_raw)
    assert found[:2] == [begun, end]
    assert json.loads(found[2][6:]) == {"id": "x", "choices": [], "usage": USAGE}
    assert found[3:] == [DONE]
    assert counted not in relayed(nothing, begun, end, counted, DONE, is_raw=is_raw, is_ours=True)
