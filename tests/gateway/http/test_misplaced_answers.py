"""Answers of providers whose parts stand in other places: each is read, through three APIs."""

import json
from typing import Any

import pytest

from tests.fakes.provider import FakeProvider
from tests.gateway.http.test_ends_of_others import each_api, each_way, last_of
from tests.gateway.http.test_odd_answers import (
    CALLED,
    DONE,
    ENDS,
    HELLO,
    TOLD,
    TOOLS,
    USAGE,
    OddProvider,
    asked,
    choice_of,
    chunk,
    event,
    is_called,
    said_of,
    whole,
)

END = chunk({}, "stop")
ARGUMENTS = '{"city":"x"}'


def in_chunk(finish: str | None = None, **fields: Any) -> bytes:
    """A chunk with a choice of these fields, without a delta."""
    return event(choices=[{"index": 0, "finish_reason": finish, **fields}])


def part(arguments: str | None = None, name: str | None = None, **more: Any) -> dict[str, Any]:
    given = {"name": name, "arguments": arguments}
    return {"index": 0, "function": {k: v for k, v in given.items() if v is not None}, **more}


def calling(*parts: dict[str, Any], end: bytes | None = None) -> bytes:
    told = [chunk({"tool_calls": [one]}) for one in parts]
    return b"".join([*told, chunk({}, "tool_calls") if end is None else end, DONE])


OTHER_STREAMS = {
    "messages": [in_chunk(message=m) for m in (HELLO, {"content": ""})] + [in_chunk("stop")],
    "one": [in_chunk("stop", message=HELLO)],
    "texts": [in_chunk(text="Hello from"), in_chunk("stop", text=" afar")],
    "repeated": [*TOLD, in_chunk("stop", message=HELLO)],
    "both": [chunk({"content": HELLO["content"]}, message=HELLO), chunk({}, "stop", message=HELLO)],
}


@each_api
@pytest.mark.parametrize("name", sorted(OTHER_STREAMS))
async def test_a_stream_without_deltas_is_an_answer(api: str, name: str) -> None:
    """Messages or texts in their place count once, and every choice has a delta in the end."""
    fake = OddProvider(streamed=b"".join([*OTHER_STREAMS[name], DONE]))
    reply = await asked(api, fake, stream=True)
    assert said_of(api, reply, stream=True)["text"] == "Hello from afar"
    assert last_of(api, reply, stream=True) == ENDS[api]


@each_api
@pytest.mark.parametrize("place", ["delta", "text"])
async def test_a_whole_answer_without_a_message_is_one(api: str, place: str) -> None:
    """A whole answer without a message is read, as of a server that knows only chunks or only raw
    completions.
    """
    said = HELLO if place == "delta" else HELLO["content"]
    choice = {"index": 0, place: said, "finish_reason": "stop"}
    fake = OddProvider(body=json.dumps({"choices": [choice], "usage": USAGE}).encode())
    reply = await asked(api, fake, stream=False)
    assert said_of(api, reply, stream=False)["text"] == "Hello from afar"


@pytest.mark.parametrize("api", ["messages", "responses"])
@each_way
@pytest.mark.parametrize(
    "content", [{"type": "text", "text": "Hello"}, ["Hel", "lo"], [{"text": "Hel"}, "lo"]]
)
async def test_a_text_in_any_parts_is_one(api: str, stream: bool, content: Any) -> None:
    """One part without a list, or texts in it."""
    told = [chunk({"content": content}), END, DONE]
    fake = OddProvider(
        body=whole({"role": "assistant", "content": content}), streamed=b"".join(told)
    )
    reply = await asked(api, fake, stream=stream)
    assert said_of(api, reply, stream=stream)["text"] == "Hello"


@pytest.mark.parametrize("api", ["messages", "responses"])
@each_way
async def test_a_refusal_behind_a_text_is_read(api: str, stream: bool) -> None:
    """A whole answer says as much as a stream."""
    message = {"role": "assistant", "content": "Hm. ", "refusal": "No."}
    told = [chunk({"content": "Hm. "}), chunk({"refusal": "No."}), END, DONE]
    fake = OddProvider(body=whole(message), streamed=b"".join(told))
    reply = await asked(api, fake, stream=stream)
    assert said_of(api, reply, stream=stream)["text"] == "Hm. No."


@pytest.mark.parametrize("api", ["messages", "responses"])
@each_way
@pytest.mark.parametrize("thought", [{"reasoning_text": "So."}, {"reasoning": {"content": "So."}}])
async def test_thoughts_in_other_fields(api: str, stream: bool, thought: dict[str, Any]) -> None:
    """Thoughts in other fields, as those of Copilot, and in objects are read."""
    told = [chunk(thought), chunk({"content": "Hello"}), END, DONE]
    body = whole({"role": "assistant", "content": "Hello", **thought})
    thinks = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if api == "messages" else {}
    fake = OddProvider(body=body, streamed=b"".join(told))
    found = said_of(api, await asked(api, fake, stream=stream, **thinks), stream=stream)
    assert (found["thought"], found["text"]) == ("So.", "Hello")


LATE = {
    "reset": FakeProvider(ends=False, breaks=True),
    "no last line": OddProvider(streamed=b"".join([*TOLD, END.rstrip()])),
    "garbage": OddProvider(streamed=b"".join([*TOLD, END, b"data: <html>\n\n"])),
    "small letters": OddProvider(streamed=b"".join([*TOLD, END, b"data: [done]\n\n"])),
    "a text": OddProvider(streamed=b"".join([*TOLD, END, b'data: "[DONE]"\n\n'])),
}


@each_api
@pytest.mark.parametrize("name", sorted(LATE))
async def test_an_answer_is_whole_when_it_has_said_why_it_ended(api: str, name: str) -> None:
    """However the connection ends behind that: an error would make clients ask and pay again."""
    reply = await asked(api, LATE[name], stream=True)
    assert said_of(api, reply, stream=True)["text"] == "Hello from afar"
    assert last_of(api, reply, stream=True) == ENDS[api]
    assert (DONE in reply.body) is (api == "chat")


@each_api
async def test_half_an_event_behind_an_answer_is_none(api: str) -> None:
    """What was cut within its JSON is not read, and the end was not in it."""
    reply = await asked(api, OddProvider(streamed=b"".join([*TOLD, END[:-9]])), stream=True)
    assert last_of(api, reply, stream=True) in {"error", "failed"}


NOISE = {
    "null": [b"data: null\n\n", *TOLD, b"data: null\n\n", END],
    "no end": [chunk({"content": HELLO["content"]}, "null"), END],
    "no error": [
        event(error={"code": 0, "message": ""}, choices=[choice_of(HELLO)]),
        END,
    ],
    "tab": [chunk({"content": "Hello from afar"}).replace(b"Hello ", b"Hello\t"), END],
}


@each_api
@pytest.mark.parametrize("name", sorted(NOISE))
async def test_what_says_nothing_costs_no_stream(api: str, name: str) -> None:
    """Null for a chunk or, as a text, for an end; an error without anything in it; a bare tab."""
    reply = await asked(api, OddProvider(streamed=b"".join([*NOISE[name], DONE])), stream=True)
    text = said_of(api, reply, stream=True)["text"]
    assert text.replace("\t", " ") == "Hello from afar"
    assert last_of(api, reply, stream=True) == ENDS[api]


@each_api
@each_way
@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbf" + whole(HELLO),
        whole(HELLO, "null"),
        whole(HELLO, error={"code": 0, "message": ""}),
        whole(HELLO).replace(b"Hello from", b"Hello\nfrom"),
    ],
    ids=["mark", "no end", "no error", "line break"],
)
async def test_a_whole_answer_with_noise_is_one(api: str, stream: bool, body: bytes) -> None:
    """A whole answer among noise or with a byte order mark is read, also where a stream was asked
    for.
    """
    reply = await asked(api, OddProvider(body=body), stream=stream)
    text = said_of(api, reply, stream=stream)["text"]
    assert text.replace("\n", " ") == "Hello from afar"


@each_api
async def test_a_refusal_with_a_mark_keeps_its_words(api: str) -> None:
    """A byte order mark before an error."""
    body = b'\xef\xbb\xbf{"error": {"message": "No such voice."}}'
    reply = await asked(api, FakeProvider(status=400, error_body=body), stream=False)
    assert reply.status == 400
    assert b"No such voice" in reply.body


FIRST = part(name="get", id="a", type="function")
CALLS = {
    "no arguments": (calling(FIRST, part(ARGUMENTS)), ARGUMENTS),
    "null": (calling({**FIRST, "function": {"name": "get", "arguments": None}}), "{}"),
    "never": (calling(FIRST), "{}"),
    "function": (
        b"".join(
            [
                chunk({"function_call": {"name": "get", "arguments": ""}}),
                chunk({"function_call": {"arguments": ARGUMENTS}}),
                chunk({}, "function_call"),
                DONE,
            ]
        ),
        ARGUMENTS,
    ),
}


@pytest.mark.parametrize("api", ["messages", "responses"])
@each_way
@pytest.mark.parametrize("name", sorted(CALLS))
async def test_calls_of_a_stream_for_a_whole_answer(api: str, stream: bool, name: str) -> None:
    """Calls of a stream are joined to a whole answer, whatever the first part of a call leaves
    out.
    """
    body, arguments = CALLS[name]
    reply = await asked(api, OddProvider(body=body), stream=stream, tools=TOOLS[api])
    called = said_of(api, reply, stream=stream)["calls"]
    assert is_called(called, ("get", json.loads(arguments)))
    assert last_of(api, reply, stream=stream) == CALLED[api]


@pytest.mark.parametrize("name", ["no arguments", "null", "never"])
async def test_calls_of_a_stream_for_a_whole_chat(name: str) -> None:
    """Calls of a stream for a whole chat are joined, as in the other APIs."""
    body, arguments = CALLS[name]
    reply = await asked("chat", OddProvider(body=body), stream=False, tools=TOOLS["chat"])
    called = said_of("chat", reply, stream=False)["calls"]
    assert is_called(called, ("get", json.loads(arguments)))


async def test_parts_of_a_stream_are_one_message() -> None:
    """Text beside parts, a sound in pieces, and the usage that stands in a choice."""
    told = [
        chunk({"content": "Hello"}),
        chunk({"content": [{"type": "text", "text": " you"}]}),
        chunk({"audio": {"id": "s", "data": "AA"}}),
        chunk({"audio": {"id": "s", "data": "BB"}}),
        chunk({}, "stop", usage=USAGE),
        DONE,
    ]
    reply = await asked("chat", OddProvider(body=b"".join(told)), stream=False)
    message = reply.json["choices"][0]["message"]
    assert message["content"] == "Hello you"
    assert message["audio"] == {"id": "s", "data": "AABB"}
    assert reply.json["usage"] == USAGE


async def test_choices_without_numbers_are_several() -> None:
    """A whole answer in place of a stream."""
    choices = [{"message": {"role": "assistant", "content": one}} for one in "AB"]
    fake = OddProvider(body=json.dumps({"choices": choices}).encode())
    reply = await asked("chat", fake, stream=True, n=2)
    datas = [line[6:] for line in reply.body.split(b"\n") if line.startswith(b"data: {")]
    told = [one for data in datas for one in json.loads(data)["choices"]]
    assert {(one["index"], one["delta"].get("content")) for one in told} >= {(0, "A"), (1, "B")}


@each_api
@pytest.mark.parametrize("choices", [7, True, {"a": 1}, "none", [7], [None]])
async def test_choices_of_any_type_cost_no_answer(api: str, choices: object) -> None:
    """Choices of any type cost no answer, in a stream for a whole answer as in one for a stream."""
    body = b"".join([event(choices=choices), *TOLD, END, DONE])
    reply = await asked(api, OddProvider(body=body), stream=False)
    assert said_of(api, reply, stream=False)["text"] == "Hello from afar"


IN_PIECES = {
    "an id for each part": calling(
        part("", "get", id="a"), part('{"city":', id="b"), part('"x"}', id="c")
    ),
    "once more": calling(part(ARGUMENTS, "get", id="a"), part(ARGUMENTS, "get", id="a")),
    "an empty last part": calling(part(ARGUMENTS, "get", id="a"), part("", "get", id="a")),
    "behind its end": b"".join(
        [
            chunk({"tool_calls": [part('{"city":', "get", id="a")]}),
            chunk({}, "tool_calls"),
            chunk({"tool_calls": [part('"')]}),
            chunk({"tool_calls": [part('x"}')]}),
            DONE,
        ]
    ),
    "namespace": calling(part(ARGUMENTS, "functions.get", id="a")),
    "namespace in each part": calling(
        part('{"city":', "functions.get", id="a"), part('"x"}', "functions.get", id="a")
    ),
    "white space": calling(part(ARGUMENTS, " get\n", id="a")),
    "a text": chunk({"tool_calls": json.dumps([part(ARGUMENTS, "get", id="a")])})
    + calling(end=chunk({}, "tool_calls")),
}


@each_api
@pytest.mark.parametrize("name", sorted(IN_PIECES))
async def test_one_call_stays_one(api: str, name: str) -> None:
    """One call stays one call, with all its arguments and the name of a tool of the request."""
    reply = await asked(api, OddProvider(streamed=IN_PIECES[name]), stream=True, tools=TOOLS[api])
    called = said_of(api, reply, stream=True)["calls"]
    assert is_called(called, ("get", {"city": "x"})), called
    assert last_of(api, reply, stream=True) == CALLED[api]


@each_api
async def test_two_calls_with_one_id_are_two(api: str) -> None:
    """Two calls with one id are two if they say different things."""
    told = calling(part(ARGUMENTS, "get", id="a"), part('{"city":"y"}', "get", id="a"))
    reply = await asked(api, OddProvider(streamed=told), stream=True, tools=TOOLS[api])
    called = said_of(api, reply, stream=True)["calls"]
    assert is_called(called, ("get", {"city": "x"}), ("get", {"city": "y"}))


@each_api
@each_way
@pytest.mark.parametrize("call", [None, {"index": 0, "id": "a", "function": "get"}])
async def test_calls_that_are_none_are_a_failure(api: str, stream: bool, call: Any) -> None:
    """An answer that says that it calls a tool, without text and without a call that can be read,
    would end an agent's turn in silence.
    """
    given = {} if call is None else {"tool_calls": [call]}
    told = [*([chunk(given)] if given else []), chunk({}, "tool_calls"), DONE]
    body = whole({"role": "assistant", "content": None, **given}, "tool_calls")
    fake = OddProvider(body=body, streamed=b"".join(told))
    reply = await asked(api, fake, stream=stream, tools=TOOLS[api])
    assert reply.status == 502 or last_of(api, reply, stream=stream) in {"error", "failed"}
    if call is None:
        reply = await asked(api, fake, FakeProvider(), stream=stream, tools=TOOLS[api])
        assert said_of(api, reply, stream=stream)["text"] == "Hello from afar"


@each_api
@each_way
async def test_a_text_that_says_that_it_calls_a_tool_ends_as_one(api: str, stream: bool) -> None:
    """Agents that see calls in the end, and none in the answer, ask again without an end."""
    told = [*TOLD, chunk({}, "tool_calls"), DONE]
    fake = OddProvider(body=whole(HELLO, "tool_calls"), streamed=b"".join(told))
    reply = await asked(api, fake, stream=stream)
    assert said_of(api, reply, stream=stream)["text"] == "Hello from afar"
    assert last_of(api, reply, stream=stream) == ENDS[api]


ALMOST_JSON = {
    "line break": ('{"city":"a\nb"}', {"city": "a\nb"}),
    "tab in the second piece": ('{ "a" : "\\\\" ,\n\t"city" : "\tx" }', {"a": "\\", "city": "\tx"}),
    "twice": (json.dumps(ARGUMENTS), {"city": "x"}),
}


@pytest.mark.parametrize("api", ["messages", "responses"])
@each_way
@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("name", sorted(ALMOST_JSON))
async def test_arguments_that_are_almost_json_are_read(
    api: str, stream: bool, size: int, name: str
) -> None:
    """A line break within a text as the model wrote it; JSON in a JSON string."""
    text, expected = ALMOST_JSON[name]
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    told = calling(part("", "get", id="a"), *map(part, pieces))
    message = {"role": "assistant", "content": None, "tool_calls": [part(text, "get", id="a")]}
    fake = OddProvider(body=whole(message, "tool_calls"), streamed=told)
    reply = await asked(api, fake, stream=stream, tools=TOOLS[api])
    assert is_called(said_of(api, reply, stream=stream)["calls"], ("get", expected))


@pytest.mark.parametrize("api", ["messages", "responses"])
@each_way
@pytest.mark.parametrize("size", [1, 4, 1000])
async def test_half_a_character_in_arguments_is_none(api: str, stream: bool, size: int) -> None:
    """The official client of Messages cannot read it, and raises for the whole answer."""
    text = '{"city":"\\ud83d\\ude00\\ud83d\\\\ud83d"}'
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    message = {"role": "assistant", "content": None, "tool_calls": [part(text, "get", id="a")]}
    told = calling(part("", "get", id="a"), *map(part, pieces))
    fake = OddProvider(body=whole(message, "tool_calls"), streamed=told)
    reply = await asked(api, fake, stream=stream, tools=TOOLS[api])
    called = said_of(api, reply, stream=stream)["calls"]
    assert is_called(called, ("get", {"city": "\U0001f600\ufffd\\ud83d"}))


IN_PARTS = {
    "part": ({"type": "text", "text": "Hello"}, "Hello", ""),
    "parts": ([{"type": "text", "text": "Hel"}, {"text": "lo"}, "!"], "Hello!", ""),
    "output": ([{"type": "output_text", "text": "Hello"}], "Hello", ""),
    "thought": (
        [{"type": "thinking", "thinking": [{"type": "text", "text": "So."}]}, {"text": "Hello"}],
        "Hello",
        "So.",
    ),
    "only a thought": ([{"type": "thinking", "thinking": "So."}], "", "So."),
    "number": (42, "42", ""),
    "object": ({"city": "Rome"}, '{"city":"Rome"}', ""),
}


@each_api
@each_way
@pytest.mark.parametrize("name", sorted(IN_PARTS))
async def test_a_content_of_any_type_is_a_text(api: str, stream: bool, name: str) -> None:
    """Clients of chats add contents up as texts. An object is what JSON was asked for."""
    content, text, thought = IN_PARTS[name]
    told = [chunk({"content": content}), chunk({"content": " you"}), END, DONE]
    body = whole({"role": "assistant", "content": content})
    thinks = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if api == "messages" else {}
    fake = OddProvider(body=body, streamed=b"".join(told))
    found = said_of(api, await asked(api, fake, stream=stream, **thinks), stream=stream)
    assert (found["text"], found["thought"]) == (text + " you" * stream, thought)


async def test_a_picture_in_a_content_stays_there() -> None:
    """A text would lose it."""
    parts = [{"type": "text", "text": "See:"}, {"type": "image_url", "image_url": {"url": "u"}}]
    told = [chunk({"content": parts}), END, DONE]
    fake = OddProvider(body=whole({"role": "assistant", "content": parts}), streamed=b"".join(told))
    reply = await asked("chat", fake, stream=False)
    assert reply.json["choices"][0]["message"]["content"] == parts
    assert told[0] in (await asked("chat", fake, stream=True)).body


@each_api
@pytest.mark.parametrize("rest", [[], [chunk({}, "tool_calls"), DONE]], ids=["cut", "ended"])
async def test_the_beginning_of_a_call_without_its_name_is_no_answer(
    api: str, rest: list[bytes]
) -> None:
    """Nothing of it was sent, so another provider can be asked."""
    told = [chunk({"tool_calls": [part("", id="a")]}), chunk({"tool_calls": [part("{")]}), *rest]
    fake = OddProvider(streamed=b"".join(told))
    reply = await asked(api, fake, FakeProvider(), stream=True, tools=TOOLS[api])
    assert reply.headers["x-herma-served-by"] == "cloud:p1"
    assert said_of(api, reply, stream=True)["text"] == "Hello from afar"


@each_api
@pytest.mark.parametrize("late", [True, False])
async def test_a_name_may_come_late(api: str, late: bool) -> None:
    """A name may come late, behind the id or behind the arguments."""
    parts = [part(id="a"), part(name="get"), part(ARGUMENTS)]
    told = calling(*(parts[:1] + parts[:0:-1] if late else parts))
    reply = await asked(api, OddProvider(streamed=told), stream=True, tools=TOOLS[api])
    assert is_called(said_of(api, reply, stream=True)["calls"], ("get", {"city": "x"}))


@each_api
@each_way
@pytest.mark.parametrize("finish", ["stop", "STOP", "end_turn"])
async def test_an_answer_with_calls_ends_by_them(api: str, stream: bool, finish: str) -> None:
    """Agents that look at the end alone would leave the calls unmade."""
    told = calling(part(ARGUMENTS, "get", id="a"), end=chunk({}, finish))
    message = {"role": "assistant", "tool_calls": [part(ARGUMENTS, "get", id="a")]}
    fake = OddProvider(body=whole(message, finish), streamed=told)
    reply = await asked(api, fake, stream=stream, tools=TOOLS[api])
    assert is_called(said_of(api, reply, stream=stream)["calls"], ("get", {"city": "x"}))
    assert last_of(api, reply, stream=stream) == CALLED[api]


@pytest.mark.parametrize("index", [0.0, False, "0", None, -1, 7])
async def test_the_number_of_a_call_is_one(index: object) -> None:
    """Clients with types read no other."""
    parts = [{**part('{"city"', "get", id="a"), "index": index}, {**part(':"x"}'), "index": index}]
    reply = await asked("chat", OddProvider(streamed=calling(*parts)), stream=True)
    assert is_called(said_of("chat", reply, stream=True)["calls"], ("get", {"city": "x"}))
    assert reply.body.replace(b" ", b"").count(b'"index":0,') >= 2
    for wrong in (b'"index":0.0', b'"index":false', b'"index":"0"', b'"index":-1', b'"index":7'):
        assert wrong not in reply.body.replace(b" ", b"")
