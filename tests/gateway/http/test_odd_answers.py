"""Answers of providers in odd forms: each is read as what it says, through three APIs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import h11
import msgspec
import pytest
import trio

from gateway.app import edge_of
from gateway.http.routes import edge_app
from gateway.turn import fallback_chain
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.served import Reply, ask, served
from tests.gateway.http.test_ends_of_others import APIS as PATHS
from tests.gateway.http.test_ends_of_others import each_api, each_way, last_of

APIS: dict[str, tuple[str, dict[str, Any]]] = dict(PATHS)  # type: ignore[arg-type]
DONE = b"data: [DONE]\n\n"
ENDS = {"chat": "stop", "messages": "end_turn", "responses": "completed"}
CALLED = {"chat": "tool_calls", "messages": "tool_use", "responses": "completed"}
USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
NAMES = ("get", "get_weather")
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES
    ],
    "messages": [{"name": name, "input_schema": PARAMETERS} for name in NAMES],
    "responses": [{"type": "function", "name": name, "parameters": PARAMETERS} for name in NAMES],
}

Deltas = Sequence[dict[str, Any]]


def choice_of(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish, **more}


def event(**fields: Any) -> bytes:
    head = {"id": "up-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**head, **fields}).encode() + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    return event(choices=[choice_of(delta, finish, **more)])


def whole(message: dict[str, Any], finish: str = "stop", **more: Any) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": finish, **more}
    answer = {"id": "up-1", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**answer, "choices": [choice], "usage": USAGE}).encode()


HELLO = {"role": "assistant", "content": "Hello from afar"}
TOLD = [chunk({"content": word}) for word in ("Hello", " from", " afar")]
STREAM = b"".join([*TOLD, chunk({}, "stop"), DONE])


@dataclass
class OddProvider(FakeProvider):
    """Answers all requests with `body`, or streamed ones with `streamed`."""

    body: bytes = b""
    streamed: bytes | None = None
    kind: str = "application/json"

    async def _answer(
        self, stream: trio.abc.Stream, parser: h11.Connection, body: dict[str, Any]
    ) -> None:
        data, kind = self.body, self.kind
        if body.get("stream") and self.streamed is not None:
            data, kind = self.streamed, "text/event-stream"
        headers = [("content-type", kind), ("connection", "close"), *self.headers.items()]
        for part in (
            h11.Response(status_code=self.status, headers=headers),
            h11.Data(data=data),
            h11.EndOfMessage(),
        ):
            await stream.send_all(parser.send(part) or b"")


async def asked(api: str, *fakes: FakeProvider, stream: bool, **more: Any) -> Reply:
    """The answer of a gateway with these providers, in their order."""
    path, fields = APIS[api]
    async with open_provider(fakes[0]) as first, open_provider(fakes[-1]) as last:
        model, tables = chain_of({"p0": first, "p1": last} if len(fakes) > 1 else {"p0": first})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            body = msgspec.json.encode({"model": "alpha", "stream": stream, **fields, **more})
            return await ask(url, "POST", path, body)


def said_of(api: str, reply: Reply, *, stream: bool) -> dict[str, Any]:
    """The text, the thoughts and the calls of an answer: names and arguments."""
    assert reply.status == 200, reply
    if not stream:
        return _of_whole(api, reply.json)
    datas = [line[6:] for line in reply.body.split(b"\n") if line.startswith(b"data: ")]
    events = [json.loads(data) for data in datas if data != b"[DONE]"]
    if api == "responses":
        return _of_whole(api, events[-1]["response"])
    if api == "messages":
        return _of_blocks(_blocks(events))
    said: dict[str, Any] = {"text": "", "thought": "", "calls": []}
    for delta in [one["delta"] for each in events for one in each["choices"]]:
        said["text"] += delta.get("content") or ""
        said["thought"] += delta.get("reasoning_content") or delta.get("reasoning") or ""
        for part in delta.get("tool_calls") or ():
            if part.get("id"):
                said["calls"].append([part["function"]["name"], ""])
            said["calls"][part["index"]][1] += part["function"].get("arguments") or ""
    return {**said, "calls": [tuple(call) for call in said["calls"]]}


def _blocks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for each in events:
        if each["type"] == "content_block_start":
            blocks.append({**each["content_block"]})
        elif each["type"] == "content_block_delta":
            delta, block = each["delta"], blocks[-1]
            if delta["type"] == "input_json_delta":
                block["json"] = block.get("json", "") + delta["partial_json"]
            for name in ("text", "thinking"):
                if name in delta:
                    block[name] += delta[name]
    return blocks


def _of_blocks(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    calls = [block for block in blocks if block["type"] == "tool_use"]
    return {
        "text": "".join(block["text"] for block in blocks if block["type"] == "text"),
        "thought": "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        "calls": [(c["name"], c.get("json") or json.dumps(c["input"])) for c in calls],
    }


def _of_whole(api: str, body: dict[str, Any]) -> dict[str, Any]:
    if api == "messages":
        return _of_blocks(body["content"])
    if api == "chat":
        message = body["choices"][0]["message"]
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        return {
            "text": message.get("content") or "",
            "thought": message.get("reasoning_content") or message.get("reasoning") or "",
            "calls": [(one["name"], one["arguments"]) for one in functions],
        }
    items = body["output"]
    parts = [(item["type"], part) for item in items for part in item.get("content") or ()]
    return {
        "text": "".join(it.get("text") or it["refusal"] for kind, it in parts if kind == "message"),
        "thought": "".join(part["text"] for kind, part in parts if kind == "reasoning"),
        "calls": [(i["name"], i["arguments"]) for i in items if i["type"] == "function_call"],
    }


def is_called(calls: list[tuple[str, str]], *expected: tuple[str, dict[str, Any]]) -> bool:
    return [(name, json.loads(text)) for name, text in calls] == list(expected)


@each_api
@each_way
async def test_an_answer_in_the_other_form_is_one(api: str, stream: bool) -> None:
    """Servers without streams send one object, proxies that know only streams send events."""
    other = whole(HELLO) if stream else STREAM
    reply = await asked(api, OddProvider(body=other), stream=stream)
    assert said_of(api, reply, stream=stream)["text"] == "Hello from afar"
    assert last_of(api, reply, stream=stream) == ENDS[api]


@each_api
@each_way
async def test_calls_in_the_other_form_are_calls(api: str, stream: bool) -> None:
    """Calls in the other form are calls, with the thoughts before them and the usage."""
    call = {"id": "a", "type": "function", "function": {"name": "get", "arguments": '{"city":"x"}'}}
    first = {**call, "index": 0, "function": {"name": "get", "arguments": '{"city"'}}
    told = [
        chunk({"reasoning_content": "Let "}),
        chunk({"reasoning_content": "me see."}),
        chunk({"tool_calls": [first]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ':"x"}'}}]}),
        chunk({}, "tool_calls"),
        event(choices=[], usage=USAGE),
        DONE,
    ]
    message = {"role": "assistant", "reasoning_content": "Let me see.", "tool_calls": [call]}
    body = whole(message, "tool_calls") if stream else b"".join(told)
    options = {"stream_options": {"include_usage": True}} if stream and api == "chat" else {}
    thinks = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if api == "messages" else {}
    reply = await asked(
        api, OddProvider(body=body), stream=stream, tools=TOOLS[api], **options, **thinks
    )
    said = said_of(api, reply, stream=stream)
    assert said["thought"] == "Let me see."
    assert is_called(said["calls"], ("get", {"city": "x"}))
    assert last_of(api, reply, stream=stream) == CALLED[api]
    name = "completion_tokens" if api == "chat" else "output_tokens"
    assert f'"{name}":5'.encode() in reply.body.replace(b" ", b"")


@each_api
@pytest.mark.parametrize("is_about_request", [False, True])
async def test_an_error_in_the_other_form_keeps_its_words(api: str, is_about_request: bool) -> None:
    """An error in another API's form keeps its words, whether or not it refuses the request."""
    error = {"message": "No such voice.", "code": 400 if is_about_request else "hot"}
    for body, stream in (
        (json.dumps({"error": error}).encode(), True),
        (event(error=error) + DONE, False),
    ):
        reply = await asked(api, OddProvider(body=body), stream=stream)
        assert reply.status == (400 if is_about_request else 502)
        assert b"No such voice" in reply.body


@each_api
async def test_half_a_stream_is_no_whole_answer(api: str) -> None:
    """Half a stream is no whole answer, and neither is a stream that does not say why it ended."""
    for body in (b"".join(TOLD), b"".join([*TOLD, DONE]), chunk({"content": ""}, "error") + DONE):
        reply = await asked(api, OddProvider(body=body), stream=False)
        assert reply.status == 502


@each_api
async def test_the_end_of_all_choices_needs_no_done(api: str) -> None:
    """The body of the response ends as it should, too."""
    body = b"".join([*TOLD, chunk({}, "stop")])
    reply = await asked(api, OddProvider(streamed=body), stream=True)
    assert said_of(api, reply, stream=True)["text"] == "Hello from afar"
    assert last_of(api, reply, stream=True) == ENDS[api]
    assert (DONE in reply.body) is (api == "chat")


async def test_a_server_that_ignores_n_gives_one_choice() -> None:
    """The orderly end of a body in chunks says that no other comes; one that came has to end."""
    for streamed, last in ([*TOLD, chunk({}, "stop")], "stop"), (TOLD, "error"):
        provider = OddProvider(streamed=b"".join(streamed))
        reply = await asked("chat", provider, stream=True, n=2)
        assert last_of("chat", reply, stream=True) == last


@each_api
@each_way
@pytest.mark.parametrize("index", [None, "0", 1])
async def test_the_only_choice_has_any_number(api: str, stream: bool, index: object) -> None:
    """The only choice may have any number, or none."""
    told = [chunk({"content": "Hello"}, index=index), chunk({}, "stop", index=index), DONE]
    body = whole({"role": "assistant", "content": "Hello"}, index=index)
    fake = OddProvider(body=body, streamed=b"".join(told))
    reply = await asked(api, fake, stream=stream)
    assert said_of(api, reply, stream=stream)["text"] == "Hello"


THINKS = [
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "So."}]}]},
    {"reasoning_details": [{"type": "reasoning.text", "text": "So."}]},
    {"reasoning": None, "reasoning_details": [{"type": "reasoning.summary", "summary": "So."}]},
    {"thinking": "So."},
    {"reasoning": "So.", "reasoning_details": [{"type": "reasoning.text", "text": "So."}]},
]


@pytest.mark.parametrize("api", ["messages", "responses"])
@each_way
@pytest.mark.parametrize("thought", THINKS)
async def test_thoughts_are_found_where_they_stand(
    api: str, stream: bool, thought: dict[str, Any]
) -> None:
    """Thoughts are found once, wherever the server writes them."""
    said = [{"type": "text", "text": "Hello"}]
    content = [*thought["content"], *said] if "content" in thought else "Hello"
    message = {"role": "assistant", **thought, "content": content}
    told = [chunk(thought), chunk({"content": "Hello"}), chunk({}, "stop"), DONE]
    fake = OddProvider(body=whole(message), streamed=b"".join(told))
    thinks = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if api == "messages" else {}
    reply = await asked(api, fake, stream=stream, **thinks)
    found = said_of(api, reply, stream=stream)
    assert (found["thought"], found["text"]) == ("So.", "Hello")


ERRORS = {
    "object": b'data: {"object": "error", "message": "It is hot.", "code": 500}\n\n',
    "type": b'data: {"type": "error", "message": "It is hot."}\n\n',
    "event": b'event: error\ndata: {"message": "It is hot."}\n\n',
    "text": b"event: error\ndata: It is hot.\n\n",
    "detail": b'data: {"detail": "It is hot."}\n\n',
    "minimax": event(choices=None, base_resp={"status_code": 1008, "status_msg": "It is hot."}),
    "choice": chunk({}, "error", error={"code": 502, "message": "It is hot."}),
    "list": b'data: [{"error": {"code": 503, "message": "It is hot.", "status": "X"}}]\n\n',
    "exception": b'data: {"modelStreamErrorException": {"message": "It is hot."}}\n\n',
}


@each_api
@pytest.mark.parametrize("name", sorted(ERRORS))
@pytest.mark.parametrize("has_begun", [False, True])
async def test_an_error_in_a_stream_keeps_its_words(api: str, name: str, has_begun: bool) -> None:
    """An error in a stream keeps its words in any form, before the answer and in it."""
    body = b"".join([*TOLD[:1], ERRORS[name]] if has_begun else [ERRORS[name], DONE])
    reply = await asked(api, OddProvider(streamed=body), stream=True)
    assert b"It is hot" in reply.body
    assert (reply.status, last_of(api, reply, stream=True)) in {
        (200 if has_begun else 502, "error"),
        (200, "failed"),
    }


@each_api
@pytest.mark.parametrize("rest", [b'{"error": {"message": "It is hot."}}\n', b"It is hot."])
async def test_words_behind_the_last_event_are_told(api: str, rest: bytes) -> None:
    """Some proxies write their error there as it is."""
    reply = await asked(api, OddProvider(streamed=TOLD[0] + rest), stream=True)
    assert b"It is hot" in reply.body
    assert last_of(api, reply, stream=True) in ("error", "failed")


@pytest.mark.parametrize("ping", [b'{"type": "ping"}', b"{}", b'{"event": "x", "choice": 1}'])
async def test_an_object_that_is_no_chunk_does_not_pass(ping: bytes) -> None:
    """Clients take each object for a chunk with choices."""
    event = b"data: " + ping + b"\n\n"
    told = b"".join([event, TOLD[0], event, *TOLD[1:], event, chunk({}, "stop"), event, DONE])
    reply = await asked("chat", OddProvider(streamed=told), stream=True)
    assert said_of("chat", reply, stream=True)["text"] == "Hello from afar"
    assert b"data: " + ping not in reply.body


@each_api
@pytest.mark.parametrize(
    "body",
    [
        b'[{"error": {"code": 503, "message": "It is hot.", "status": "UNAVAILABLE"}}]',
        b'{"choices": null, "base_resp": {"status_code": 1008, "status_msg": "It is hot."}}',
        whole({"role": "assistant", "content": ""}, "error", error={"message": "It is hot."}),
    ],
)
async def test_an_error_in_a_whole_answer_keeps_its_words(api: str, body: bytes) -> None:
    """MiniMax's form, and OpenRouter's in a choice."""
    reply = await asked(api, OddProvider(body=body), stream=False)
    assert reply.status == 502
    assert b"It is hot" in reply.body


FAULTY = {
    "bytes": (b'"Hello\xff"', "Hello\ufffd"),
    "half": (b'"Hello\\ud83d"', "Hello\ufffd"),
    "nan": (b'"Hello", "x": [NaN, -Infinity]', "Hello"),
}


@each_api
@each_way
@pytest.mark.parametrize("name", sorted(FAULTY))
async def test_json_that_is_almost_right_is_read(api: str, stream: bool, name: str) -> None:
    """A half of a character, or no number, costs no answer."""
    text, expected = FAULTY[name]

    def faulty(data: bytes) -> bytes:
        return data.replace(b'"TEXT"', text)

    message = whole({"role": "assistant", "content": "TEXT"})
    streams = chunk({"content": "TEXT"}), TOLD[0] + chunk({"content": "TEXT"})
    for begun, told in zip(("", "Hello"), streams, strict=True):
        rest = chunk({}, "stop") + DONE
        fake = OddProvider(body=faulty(message), streamed=faulty(told) + rest)
        reply = await asked(api, fake, stream=stream)
        said = said_of(api, reply, stream=stream)["text"]
        if stream and name == "half":
            assert said == begun + "Hello"  # the other half would come with the next text
        else:
            assert said == (begun + expected if stream else expected)


@each_api
@pytest.mark.parametrize(
    "texts", [("\\ud83d", "\\ude00"), ("a \\ud83d", "\\ude00 b"), ("\\ud83d", "x")]
)
async def test_a_character_that_was_cut_in_two_is_one(api: str, texts: tuple[str, str]) -> None:
    """Programs in JavaScript cut texts between any two halves."""
    cut = 'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
    told = [(cut % text).encode() for text in texts]
    body = b"".join([*TOLD[:1], *told, chunk({}, "stop"), DONE])
    reply = await asked(api, OddProvider(streamed=body), stream=True)
    expected = json.loads(f'"Hello{"".join(texts)}"') if "de00" in texts[1] else "Hellox"
    assert said_of(api, reply, stream=True)["text"] == expected


@each_api
async def test_white_space_before_an_answer_keeps_a_connection_alive(api: str) -> None:
    """White space before an answer keeps a connection alive, also before an answer in the other
    form and before a stream.
    """
    for body in (b"\n \n" + whole(HELLO), b"\n\n\n" + STREAM):
        for stream in (False, True):
            reply = await asked(api, OddProvider(body=body), stream=stream)
            assert said_of(api, reply, stream=stream)["text"] == "Hello from afar"


@each_api
@pytest.mark.parametrize(
    ("finish", "end"),
    [
        ("COMPLETE", ENDS),
        ("FINISH_REASON_STOP", ENDS),
        ("FINISH_REASON_MAX_TOKENS", {"messages": "max_tokens", "responses": "max_output_tokens"}),
        ("PROHIBITED_CONTENT", {"messages": "refusal", "responses": "content_filter"}),
        ("content_filter: RECITATION", {"messages": "refusal", "responses": "content_filter"}),
        ("repetition", {"messages": "max_tokens", "responses": "max_output_tokens"}),
    ],
)
async def test_ends_by_other_names_are_ends(api: str, finish: str, end: dict[str, str]) -> None:
    """Cohere's, Gemini's and vLLM's own names of ends are read as ends."""
    reply = await asked(api, FakeProvider(finish=finish), stream=True)
    assert last_of(api, reply, stream=True) == (finish if api == "chat" else end[api])


def calls_in(*deltas: dict[str, Any]) -> bytes:
    told = [chunk({"tool_calls": [delta]}) for delta in deltas]
    return b"".join([*told, chunk({}, "tool_calls"), DONE])


ARGUMENTS = '{"city":"x"}'
PIECES: dict[str, Callable[[], bytes]] = {
    "name": lambda: calls_in(
        {"index": 0, "id": "a", "function": {"name": "get_", "arguments": ""}},
        {"index": 0, "function": {"name": "weather", "arguments": ""}},
        {"index": 0, "function": {"arguments": ARGUMENTS}},
    ),
    "three": lambda: calls_in(
        {"index": 0, "id": "a", "function": {"name": "ge"}},
        {"index": 0, "id": "a", "function": {"name": "t_"}},
        {"index": 0, "function": {"name": "weather", "arguments": ARGUMENTS}},
    ),
    "repeated": lambda: calls_in(
        {"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": ""}},
        {"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": ARGUMENTS}},
    ),
    "flat": lambda: calls_in(
        {"index": 0, "id": "a", "name": "get_weather", "arguments": ARGUMENTS}
    ),
    "object": lambda: b"".join(
        [
            chunk(
                {
                    "tool_calls": {
                        "id": "a",
                        "function": {"name": "get_weather", "arguments": ARGUMENTS},
                    }
                }
            ),
            chunk({}, "tool_calls"),
            DONE,
        ]
    ),
}


@each_api
@pytest.mark.parametrize("name", sorted(PIECES))
async def test_a_call_in_odd_pieces_is_one(api: str, name: str) -> None:
    """No other tool is called by the beginning of a name."""
    reply = await asked(api, OddProvider(streamed=PIECES[name]()), stream=True, tools=TOOLS[api])
    said = said_of(api, reply, stream=True)
    assert is_called(said["calls"], ("get_weather", {"city": "x"})), said
    assert last_of(api, reply, stream=True) == CALLED[api]


@each_api
async def test_two_tools_may_be_called_by_names_that_begin_alike(api: str) -> None:
    """A whole name is not the beginning of another."""
    told = calls_in(
        {"index": 0, "id": "a", "function": {"name": "get", "arguments": ""}},
        {"index": 0, "function": {"arguments": ARGUMENTS}},
        {"index": 1, "id": "b", "function": {"name": "get_weather", "arguments": ARGUMENTS}},
        {"index": 2, "id": "c", "function": {"name": "get_"}},
    )
    reply = await asked(api, OddProvider(streamed=told), stream=True, tools=TOOLS[api])
    made = said_of(api, reply, stream=True)["calls"]
    here = {"city": "x"}
    assert is_called(made, ("get", here), ("get_weather", here), ("get_", {}))


WHOLE_CALLS: dict[str, Any] = {
    "flat": [{"id": "a", "type": "function", "name": "get", "arguments": ARGUMENTS}],
    "object": {"id": "a", "function": {"name": "get", "arguments": ARGUMENTS}},
}


@each_api
@pytest.mark.parametrize("name", sorted(WHOLE_CALLS))
async def test_a_call_of_an_odd_form_is_one(api: str, name: str) -> None:
    """A call of an odd form in a whole answer is read as a call."""
    message = {"role": "assistant", "content": None, "tool_calls": WHOLE_CALLS[name]}
    fake = OddProvider(body=whole(message, "tool_calls"))
    reply = await asked(api, fake, stream=False, tools=TOOLS[api])
    assert is_called(said_of(api, reply, stream=False)["calls"], ("get", {"city": "x"}))


@each_api
@each_way
async def test_a_call_without_a_name_is_an_error(api: str, stream: bool) -> None:
    """No client can run such a call, and the answer without it would say something else."""
    call = {"index": 0, "id": "a", "type": "function", "function": {"arguments": ARGUMENTS}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    fake = OddProvider(body=whole(message, "tool_calls"), streamed=calls_in(call))
    reply = await asked(api, fake, stream=stream, tools=TOOLS[api])
    assert last_of(api, reply, stream=stream) in ("error", "failed")


@each_api
@each_way
@pytest.mark.parametrize("status", [405, 409, 425, 451])
async def test_another_provider_answers_what_does_not_refuse_the_request(
    api: str, stream: bool, status: int
) -> None:
    """Another provider is asked after a status that does not refuse the request itself, but is
    about the provider or the moment.
    """
    reply = await asked(api, FakeProvider(status=status), FakeProvider(), stream=stream)
    assert reply.headers["x-herma-served-by"] == "cloud:p1"


@each_api
@each_way
@pytest.mark.parametrize("status", [400, 422])
async def test_a_refusal_in_plain_text_is_one(api: str, stream: bool, status: int) -> None:
    """A refusal in plain text, as servers in Rust write it, is final: no retry helps."""
    text = b"Failed to read the JSON body: unknown field `foo` at line 1"
    fake = OddProvider(status=status, body=text, kind="text/plain")
    reply = await asked(api, fake, FakeProvider(), stream=stream)
    assert (reply.status, reply.json["error"]["message"]) == (status, text.decode())


@each_api
@each_way
@pytest.mark.parametrize("body", [b"<html><h1>413 Request Entity Too Large</h1></html>", b""])
async def test_a_proxy_s_page_for_a_large_body_is_a_refusal(
    api: str, stream: bool, body: bytes
) -> None:
    """nginx's, which has no words for clients."""
    reply = await asked(api, OddProvider(status=413, body=body, kind="text/html"), stream=stream)
    assert reply.status == 413
    assert b"<html>" not in reply.body


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"retry-after-ms": "2500"}, 3),
        ({"retry-after-ms": "2500", "retry-after": "9"}, 3),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
        ({"retry-after": "1.2"}, 2),
        ({"retry-after": "-3"}, 1),
    ],
)
async def test_a_pause_in_milliseconds_is_one(
    headers: dict[str, str], pause_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure's, in whole seconds for the client, where nobody waits for its end."""
    monkeypatch.setattr(fallback_chain, "PAUSE_WAIT_S", 0.0)
    fake = FakeProvider(status=429, headers=headers)
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            body = msgspec.json.encode({"model": "alpha", **APIS["chat"][1]})
            await ask(url, "POST", APIS["chat"][0], body)
            reply = await ask(url, "POST", APIS["chat"][0], body)
    assert reply.status == 429
    assert pause_s - 1 <= int(reply.headers["retry-after"]) <= pause_s
    assert len(fake.requests) == 1


@each_api
@each_way
async def test_any_success_is_one(api: str, stream: bool) -> None:
    """Some frameworks answer every POST with 201."""
    fake = OddProvider(status=201, body=whole(HELLO), streamed=STREAM)
    reply = await asked(api, fake, stream=stream)
    assert said_of(api, reply, stream=stream)["text"] == "Hello from afar"


@each_api
async def test_who_gets_a_field_is_not_told_that_it_is_ignored(api: str) -> None:
    """Providers get all fields of a chat; those of the other APIs become a chat without them."""
    fake = OddProvider(body=whole(HELLO))
    reply = await asked(api, fake, stream=False, min_tokens=3)
    assert reply.headers.get("x-herma-ignored") == (None if api == "chat" else "min_tokens")
    assert ("min_tokens" in fake.requests[0].body) is (api == "chat")
