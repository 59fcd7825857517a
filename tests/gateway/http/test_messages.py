"""The Messages API over real HTTP, answered by a worker over a real link, or by a provider."""

import json
from typing import Any

import msgspec
import pytest

from config import ModelConfig
from gateway.api import ApiError
from gateway.app import edge_of
from gateway.http.routes import edge_app
from protocol.messages import Submit
from tests.fakes.asgi import Exchange, Script, model_view, scripted_edge
from tests.fakes.messages_checker import MessagesChecker, check_messages
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.served import Reply, ask, served
from tests.fakes.text_files import make_tokenizer
from tests.fakes.whole_gateway import WholeGateway, whole_gateway
from tests.fakes.worker import FakeWorker, open_worker, prompt_ids
from tests.gateway.http.test_auth import KEYS, SECRET

PATH = "/v1/messages"
USER = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "get_weather", "input_schema": {"type": "object"}}
CALL = (
    '<think>Hm.</think>Look:<tool_call>{"name": "get_weather", "arguments": {"a": 1}}</tool_call>'
)


async def streamed(whole: WholeGateway, **fields: Any) -> MessagesChecker:
    body = {"model": "alpha", "max_tokens": 500, "messages": USER, "stream": True, **fields}
    reply = await whole.post(PATH, **body)
    assert reply.status == 200, reply
    return check_messages(reply.body)


async def test_a_message_is_the_same_whole_and_streamed() -> None:
    """Thinking with its signature, text, a call, the reason; ids and requests have their names."""
    fields: dict[str, Any] = {"tools": [TOOL], "thinking": {"type": "enabled"}}
    async with whole_gateway(FakeWorker(text=CALL)) as whole:
        reply = await whole.post(PATH, model="alpha", max_tokens=500, messages=USER, **fields)
        stream = (await streamed(whole, **fields)).message
    body = reply.json
    assert stream is not None
    assert [block["type"] for block in body["content"]] == ["thinking", "text", "tool_use"]
    assert (body["content"][2]["input"], body["stop_reason"]) == ({"a": 1}, "tool_use")
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", "alpha")
    assert reply.headers["request-id"] == body["id"].replace("msg_", "req_")
    assert reply.headers["x-request-id"] == body["id"]
    assert reply.headers["x-herma-worker"] == "w1"
    for block in (*body["content"], *stream["content"]):
        block.pop("id", None)
    assert stream["content"] == body["content"]
    total = body["usage"]["input_tokens"] + body["usage"]["cache_read_input_tokens"]
    assert total == stream["usage"]["input_tokens"] + stream["usage"]["cache_read_input_tokens"] > 0


@pytest.mark.parametrize("fields", [{}, {"thinking": {"type": "disabled"}}])
async def test_thinking_is_left_out_unless_the_client_asks_for_it(fields: dict[str, Any]) -> None:
    """A model may think all the same; the first block is what the client takes for the answer."""
    async with whole_gateway(FakeWorker(text=CALL)) as whole:
        asked = {"model": "alpha", "max_tokens": 500, "messages": USER, "tools": [TOOL], **fields}
        body = (await whole.post(PATH, **asked)).json
        stream = (await streamed(whole, tools=[TOOL], **fields)).message
    assert stream is not None
    for message in (body, stream):
        assert [block["type"] for block in message["content"]] == ["text", "tool_use"]
        assert message["stop_reason"] == "tool_use"
    assert stream["usage"]["output_tokens"] == body["usage"]["output_tokens"]


async def test_a_stop_sequence_is_named() -> None:
    """The answer names the stop sequence that ended the text."""
    async with whole_gateway(FakeWorker(text="one two three")) as whole:
        reply = await whole.post(
            PATH, model="alpha", max_tokens=99, messages=USER, stop_sequences=["zzz", " three"]
        )
    assert reply.json["content"] == [{"type": "text", "text": "one two", "citations": None}]
    assert (reply.json["stop_reason"], reply.json["stop_sequence"]) == ("stop_sequence", " three")


async def test_a_second_turn_shows_the_model_what_it_wrote() -> None:
    """Our signed thinking and the call's id come back into the prompt; a count is exact."""
    async with whole_gateway(FakeWorker(text=CALL)) as whole:
        first = await whole.post(PATH, model="alpha", max_tokens=99, messages=USER, tools=[TOOL])
        call = first.json["content"][-1]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
        messages = [
            *USER,
            {"role": "assistant", "content": first.json["content"]},
            {"role": "user", "content": [result]},
        ]
        second = await whole.post(
            PATH, model="alpha", max_tokens=99, messages=messages, tools=[TOOL]
        )
        count = await whole.post(
            PATH + "/count_tokens?beta=true", model="alpha", messages=messages, tools=[TOOL]
        )
        submit = whole.worker.all_of(Submit)[-1]
    assert second.status == 200
    prompt = make_tokenizer().decode(prompt_ids(submit), skip_special_tokens=False)
    assert "sunny" in prompt
    assert "get_weather" in prompt
    usage = second.json["usage"]
    assert count.json == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert count.json["input_tokens"] == len(prompt_ids(submit))


async def test_an_answer_goes_on_from_the_assistant_s_last_text() -> None:
    """The prompt ends in it, the answer does not repeat it, and the count includes it. Calls at the
    end of a history are no beginning of an answer.
    """
    begun = {"role": "assistant", "content": [{"type": "text", "text": "The sum is"}]}
    async with whole_gateway(FakeWorker(text=" four.")) as whole:
        asked = {"model": "alpha", "max_tokens": 99, "messages": [*USER, begun]}
        reply = await whole.post(PATH, **asked)
        count = await whole.post(PATH + "/count_tokens", **asked)
        ids = prompt_ids(whole.worker.all_of(Submit)[-1])
        call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
        calling = {"role": "assistant", "content": [*begun["content"], call]}
        called = await whole.post(PATH, **{**asked, "messages": [*USER, calling]})
    assert make_tokenizer().decode(ids).endswith("The sum is")
    assert [block["text"] for block in reply.json["content"]] == [" four."]
    assert count.json["input_tokens"] == len(ids)
    assert called.status == 200


async def test_errors_are_in_the_api_s_shape() -> None:
    """Before the answer, whoever finds the mistake; the words of a full window are known ones."""
    async with whole_gateway(FakeWorker(context_length=64)) as whole:
        for fields, status, kind in (
            ({"model": "nobody"}, 404, "not_found_error"),
            ({"messages": 5}, 400, "invalid_request_error"),
            (
                {"messages": [{"role": "user", "content": "a b " * 90}]},
                400,
                "invalid_request_error",
            ),
        ):
            body = {"model": "alpha", "max_tokens": 9, "messages": USER, **fields}
            reply = await whole.post(PATH, **body)
            assert (reply.status, reply.json["type"]) == (status, "error")
            assert reply.json["error"]["type"] == kind
            assert reply.json["request_id"] == reply.headers["request-id"]
        assert "prompt is too long" in reply.json["error"]["message"]


async def test_a_key_may_come_by_either_header() -> None:
    """`x-api-key`, or as a bearer; a wrong one is a 401 in the API's shape."""
    app = edge_app(scripted_edge(Script(), keys=KEYS))
    body = msgspec.json.encode({"model": "alpha", "max_tokens": 9, "messages": USER})

    async def status(*headers: tuple[bytes, bytes]) -> int:
        asked = await Exchange(app, path=PATH, body=body, headers=headers).run()
        if asked.status == 401:
            assert asked.json["error"]["type"] == "authentication_error"
        return asked.status

    assert await status((b"x-api-key", SECRET.encode())) == 200
    assert await status((b"authorization", b"Bearer " + SECRET.encode())) == 200
    assert await status((b"x-api-key", b"wrong")) == 401
    assert await status() == 401


async def test_a_wildcard_stands_for_all_names_that_begin_so() -> None:
    """Exact names first; the pages list no pattern. A claude of any kind is answered."""
    models = (ModelConfig(name="alpha", aliases=("claude-*",)),)
    async with open_gateway(models=models) as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        async with served(edge_app(edge_of(gateway.services))) as url:
            body = {"model": "claude-opus-9-1", "max_tokens": 9, "messages": USER}
            reply = await ask(url, "POST", PATH, msgspec.json.encode(body))
            listed = await ask(url, "GET", "/v1/models", anthropic_version="2023-06-01")
            plain = await ask(url, "GET", "/v1/models")
            one = await ask(url, "GET", "/v1/models/claude-x", anthropic_version="2023-06-01")
            hello = await ask(url, "HEAD", "/api/hello")
    assert worker is not None
    assert (reply.status, reply.json["model"]) == (200, "claude-opus-9-1")
    assert [entry["id"] for entry in plain.json["data"]] == ["alpha"]
    assert listed.json["data"][0]["type"] == "model"
    assert (listed.json["has_more"], listed.json["first_id"]) == (False, "alpha")
    assert one.json["display_name"] == "alpha"
    assert hello.status == 200


async def test_silence_is_pinged_and_a_late_error_is_an_event() -> None:
    """A stream that waits has its message and pings; an error then is in the stream."""
    views = (model_view(),)
    script = Script(0.5, ApiError(503, "Nobody.", retry_after_s=1))
    app = edge_app(scripted_edge(script, models=views, head_hold_s=0.05, keep_alive_s=0.1))
    body = {"model": "alpha", "max_tokens": 9, "messages": USER, "stream": True}
    asked = await Exchange(app, path=PATH, body=msgspec.json.encode(body)).run()
    checked = check_messages(asked.content)
    assert checked.kinds[0] == "message_start"
    assert checked.kinds.count("ping") >= 3
    assert checked.error == {
        "type": "overloaded_error",
        "message": "Nobody. You can retry your request.",
    }


async def _by_provider(fake: FakeProvider, *, stream: bool) -> Reply:
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            fields = {"max_tokens": 9, "messages": USER, "stream": stream}
            body = msgspec.json.encode({"model": "alpha", **fields})
            return await ask(url, "POST", PATH, body, anthropic_version="2023-06-01")


async def test_a_provider_that_has_only_chat_answers_too() -> None:
    """A provider that has only chat answers too: it gets a plain chat without headers of Messages,
    and its chunks become events.
    """
    usage = {"prompt_tokens": 11, "completion_tokens": 3}
    fake = FakeProvider(usage=usage)
    checked = check_messages((await _by_provider(fake, stream=True)).body)
    assert checked.message is not None
    assert checked.message["content"][0]["text"] == "Hello from afar"
    assert checked.message["usage"]["input_tokens"] == 11
    assert checked.message["usage"]["output_tokens"] == 3
    (request,) = fake.requests
    assert request.body["messages"] == USER
    assert not [name for name in request.headers if name.startswith("anthropic")]
    whole = await _by_provider(FakeProvider(usage=usage), stream=False)
    assert whole.json["content"][0]["text"] == "Hello from afar"
    assert whole.headers["x-herma-served-by"] == "cloud:p0"


async def test_pages_that_a_provider_cites_are_citations() -> None:
    """Streamed and whole; they were dropped."""
    pages = {"search_results": [{"title": "B", "url": "https://b.example"}]}
    cited = {
        "type": "web_search_result_location",
        "cited_text": "",
        "encrypted_index": "",
        "title": "B",
        "url": "https://b.example",
    }
    text = {"type": "text", "text": "Hello from afar", "citations": [cited]}
    checked = check_messages((await _by_provider(FakeProvider(extra=pages), stream=True)).body)
    assert checked.message is not None
    assert checked.message["content"] == [text]
    whole = await _by_provider(FakeProvider(extra=pages), stream=False)
    assert whole.json["content"] == [text]


async def test_a_provider_s_refusal_and_its_cut_are_errors_of_this_api() -> None:
    """A 4xx keeps its status; a stream that breaks ends in an error event."""
    refused = await _by_provider(FakeProvider(status=400), stream=True)
    assert (refused.status, refused.json["error"]["message"]) == (400, "no")
    cut = check_messages((await _by_provider(FakeProvider(cut_after=2), stream=True)).body)
    assert cut.error is not None
    assert json.dumps(cut.error).count("upstream connection lost") == 1


async def test_errors_of_other_paths_have_the_shape_of_the_client() -> None:
    """Anthropic's clients name its version in every request, also to what is not served here."""
    async with served(edge_app(scripted_edge(Script(), models=(model_view("alpha"),)))) as url:
        for method, path, status in (
            ("POST", "/v1/messages/batches", 404),
            ("GET", "/v1/files", 404),
            ("GET", "/v1/messages", 405),
            ("GET", "/v1/models/nope", 404),
            ("POST", "/v1/v1/messages", 404),
        ):
            reply = await ask(url, method, path, b"{}", anthropic_version="2023-06-01")
            error = reply.json["error"]
            assert (reply.status, reply.json["type"]) == (status, "error"), path
            assert error["type"] in ("not_found_error", "invalid_request_error")
            assert error.keys() == {"type", "message"}
            assert reply.headers["request-id"] == reply.json["request_id"]
            plain = (await ask(url, method, path, b"{}")).json
            assert plain["error"]["message"] == error["message"]
            assert "code" in plain["error"]
        wrong = await ask(url, "POST", "/v1/responses", b"{}", anthropic_version="2023-06-01")
        assert "param" in wrong.json["error"]
