"""The Responses API over real HTTP, answered by a worker over a real link, or by a provider."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import openai
import trio

from gateway.api import ApiError
from gateway.app import edge_of
from gateway.http.routes import edge_app
from protocol.messages import Submit
from tests.fakes.asgi import Exchange, Script, scripted_edge
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.responses_checker import ResponsesChecker, check_responses
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.served import Reply, ask, served
from tests.fakes.text_files import make_tokenizer
from tests.fakes.whole_gateway import WholeGateway, whole_gateway
from tests.fakes.worker import FakeWorker, prompt_ids

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
CALL = (
    '<think>Hm.</think>Look:<tool_call>{"name": "get_weather", "arguments": {"a": 1}}</tool_call>'
)
SEALED = ["reasoning.encrypted_content"]


async def streamed(whole: WholeGateway, **fields: Any) -> ResponsesChecker:
    reply = await whole.post(PATH, model="alpha", input="Hi", stream=True, **fields)
    assert reply.status == 200, reply
    return check_responses(reply.body)


async def test_a_response_is_the_same_whole_and_streamed() -> None:
    """Reasoning, text and a call; the object repeats its request."""
    fields: dict[str, Any] = {"tools": [TOOL], "include": SEALED, "instructions": "Be kind."}
    async with whole_gateway(FakeWorker(text=CALL)) as whole:
        reply = await whole.post(PATH, model="alpha", input="Hi", **fields)
        stream = await streamed(whole, **fields)
    body = reply.json
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call"]
    assert body["output"][2]["arguments"] == '{"a": 1}'
    assert (body["object"], body["status"], body["store"]) == ("response", "completed", True)
    assert (body["instructions"], body["tools"]) == ("Be kind.", [TOOL])
    assert reply.headers["x-herma-worker"] == "w1"
    assert stream.response is not None
    for item in (*body["output"], *stream.items):
        item.pop("id")
        item.pop("call_id", None)
    assert stream.items == body["output"]
    assert stream.response["usage"]["output_tokens"] == body["usage"]["output_tokens"]


async def test_a_second_turn_shows_the_model_what_it_wrote() -> None:
    """The items of the answer, sent back as they are, with a result."""
    async with whole_gateway(FakeWorker(text=CALL)) as whole:
        first = await whole.post(PATH, model="alpha", input="Hi", tools=[TOOL], include=SEALED)
        call = first.json["output"][-1]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        items = [{"role": "user", "content": "Hi"}, *first.json["output"], result]
        second = await whole.post(PATH, model="alpha", input=items, tools=[TOOL])
        submit = whole.worker.all_of(Submit)[-1]
    assert second.status == 200, second.body
    prompt = make_tokenizer().decode(prompt_ids(submit), skip_special_tokens=False)
    assert "sunny" in prompt
    assert "get_weather" in prompt


async def test_a_malformed_call_in_the_history_is_no_error() -> None:
    """A malformed call in the history is no error, and neither are a foreign blob, items of other
    servers, and a result without its call.
    """
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
        {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"a": [}'},
        {"type": "function_call_output", "call_id": "c", "output": "no"},
        {"type": "function_call_output", "call_id": "lost", "output": [{"type": "odd"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"role": "user", "content": "Again."},
    ]
    async with whole_gateway() as whole:
        reply = await whole.post(PATH, model="alpha", input=items, tools=[TOOL])
    assert (reply.status, reply.json["status"]) == (200, "completed")


async def test_an_answer_that_is_cut_is_incomplete() -> None:
    """An answer that is cut is incomplete, with the reason; so is its last item."""
    async with whole_gateway() as whole:
        stream = await streamed(whole, max_output_tokens=2)
    assert stream.response is not None
    assert stream.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert stream.items[-1]["status"] == "incomplete"


async def test_silence_is_broken_by_events_and_a_late_error_is_the_last() -> None:
    """codex does not count comments as life."""
    script = Script(0.5, ApiError(429, "Full.", code="busy", retry_after_s=2))
    app = edge_app(scripted_edge(script, head_hold_s=0.05, keep_alive_s=0.1))
    body = msgspec.json.encode({"model": "alpha", "input": "Hi", "stream": True})
    asked = await Exchange(app, path=PATH, body=body).run()
    checked = check_responses(asked.content)
    assert checked.kinds.count("response.in_progress") >= 3
    assert checked.error is not None
    assert checked.error["code"] == "rate_limit_exceeded"


async def test_what_is_not_kept_is_not_found() -> None:
    """A response that is not kept gets a 404 with its code, in the error object of all other
    endpoints.
    """
    async with whole_gateway() as whole:
        fields = {"model": "alpha", "input": "Hi", "previous_response_id": "resp_0"}
        reply = await whole.post(PATH, **fields)
    assert (reply.status, reply.json["error"]["code"]) == (404, "previous_response_not_found")


async def _by_provider(fake: FakeProvider, *, stream: bool) -> Reply:
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            body = msgspec.json.encode({"model": "alpha", "input": "Hi", "stream": stream})
            return await ask(url, "POST", PATH, body)


async def test_a_provider_that_has_only_chat_answers_too() -> None:
    """Whole and streamed; a stream that breaks is a failed response."""
    usage = {"prompt_tokens": 11, "completion_tokens": 3}
    fake = FakeProvider(usage=usage)
    checked = check_responses((await _by_provider(fake, stream=True)).body)
    assert checked.text == "Hello from afar"
    assert checked.response is not None
    assert checked.response["usage"]["total_tokens"] == 14
    assert fake.requests[0].path == "/v1/chat/completions"
    whole = await _by_provider(FakeProvider(usage=usage), stream=False)
    assert whole.json["output"][0]["content"][0]["text"] == "Hello from afar"
    cut = check_responses((await _by_provider(FakeProvider(cut_after=2), stream=True)).body)
    assert cut.error is not None
    assert cut.error["message"] == "upstream connection lost"


async def test_pages_that_a_provider_cites_are_annotations() -> None:
    """Streamed and whole; they were dropped."""
    pages = {"citations": ["https://b.example"]}
    place = {"start_index": 15, "end_index": 15, "title": ""}
    cited = {"type": "url_citation", "url": "https://b.example", **place}
    checked = check_responses((await _by_provider(FakeProvider(extra=pages), stream=True)).body)
    whole = await _by_provider(FakeProvider(extra=pages), stream=False)
    assert "response.output_text.annotation.added" in checked.kinds
    for output in (checked.items, whole.json["output"]):
        (part,) = output[0]["content"]
        assert (part["text"], part["annotations"]) == ("Hello from afar", [cited])


@asynccontextmanager
async def official(whole: WholeGateway) -> AsyncIterator[openai.OpenAI]:
    with openai.OpenAI(base_url=whole.url + "/v1", api_key="x", max_retries=0) as client:
        yield client


async def test_the_official_client_reads_both() -> None:
    """The official client reads whole and streamed responses, by its types and by its stream
    helper, which checks ids and positions itself.
    """

    def act(client: openai.OpenAI) -> None:
        answer = client.responses.create(model="alpha", input="Hi", tools=tools)
        assert answer.output_text == "Look:"
        count = client.responses.input_tokens.count(model="alpha", input="Hi", tools=tools)
        assert answer.usage is not None
        assert (count.object, count.input_tokens) == (
            "response.input_tokens",
            answer.usage.input_tokens,
        )
        with client.responses.stream(model="alpha", input="Hi", tools=tools) as events:
            kinds = [event.type for event in events]
            final = events.get_final_response()
        assert final.output_text == "Look:"
        assert [item.type for item in final.output] == [item.type for item in answer.output]
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"

    tools: Any = [TOOL]
    async with whole_gateway(FakeWorker(text=CALL)) as whole, official(whole) as client:
        await trio.to_thread.run_sync(act, client)
