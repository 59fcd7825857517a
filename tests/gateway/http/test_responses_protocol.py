"""Cases of the Responses API by the lists of Open Responses' conformance suite (a plain answer, a
stream, a system prompt, a call, a picture, several turns, a response before) and of vLLM's tests of
responses and tools, in words of our own.
"""

from typing import Any

import msgspec
import pytest

from gateway.api.responses_formatter import ResponseObject
from protocol.messages import Submit
from tests.fakes.responses_checker import check_responses
from tests.fakes.text_files import make_tokenizer
from tests.fakes.whole_gateway import WholeGateway, whole_gateway
from tests.fakes.worker import FakeWorker, prompt_ids

PATH = "/v1/responses"
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Athens"}}</tool_call>'
TWO_CALLS = CALL + CALL.replace("Athens", "Paris")
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}


async def asked(whole: WholeGateway, said: Any, **fields: Any) -> dict[str, Any]:
    """The response, whole and with no field that the description does not have."""
    reply = await whole.post(PATH, model="alpha", input=said, **fields)
    assert reply.status == 200, reply
    body: dict[str, Any] = reply.json
    read = msgspec.convert(body, ResponseObject)
    assert msgspec.json.decode(msgspec.json.encode(read)) == body
    usage = body["usage"]
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]
    return body


def prompt(whole: WholeGateway) -> str:
    """The last prompt of the worker."""
    ids = prompt_ids(whole.worker.all_of(Submit)[-1])
    return make_tokenizer().decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    "said",
    [
        "Say hello.",
        [{"type": "message", "role": "user", "content": "Say hello."}],
        [{"role": "user", "content": [{"type": "input_text", "text": "Say hello."}]}],
    ],
    ids=("text", "message", "parts"),
)
async def test_a_plain_answer(said: Any) -> None:
    """However the question is written."""
    async with whole_gateway() as whole:
        body = await asked(whole, said)
        assert "Say hello." in prompt(whole)
    (item,) = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"][0]["type"] == "output_text"
    assert (body["error"], body["incomplete_details"]) == (None, None)
    assert body["completed_at"] >= body["created_at"]


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_a_system_prompt_is_at_its_place(role: str) -> None:
    """A system prompt is at its place, in the input, or as instructions, which come first."""
    said = [{"role": role, "content": "Speak Greek."}, {"role": "user", "content": "Hi"}]
    async with whole_gateway() as whole:
        await asked(whole, said, instructions="Be brief.")
        text = prompt(whole)
    assert text.index("Be brief.") < text.index("Speak Greek.") < text.index("Hi")


async def test_several_turns_in_the_input() -> None:
    """What the model said before is the assistant's, as text or as the item that it was."""
    async with whole_gateway() as whole:
        first = await asked(whole, "My name is Ada.")
        for before in (
            {"role": "assistant", "content": "Hello Ada."},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Hello Ada."}]},
            first["output"][0],
        ):
            said = [
                {"role": "user", "content": "My name is Ada."},
                before,
                {"role": "user", "content": "Who am I?"},
            ]
            await asked(whole, said)
            text = prompt(whole)
            assert text.index("My name") < text.index("assistant") < text.index("Who am I?")


async def test_a_picture_is_for_models_that_see() -> None:
    """A model of text reads that one was there. A clear 400 names what else is no text; text beside
    it does not make it vanish.
    """
    part = {"type": "input_text", "text": "What is it?"}
    pdf = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}
    async with whole_gateway() as whole:
        await asked(whole, [{"role": "user", "content": [part, PICTURE]}])
        assert "A picture was here" in prompt(whole)
        said = [{"role": "user", "content": [part, pdf]}]
        reply = await whole.post(PATH, model="alpha", input=said)
    assert (reply.status, reply.json["error"]["code"]) == (400, "unsupported_content_part")
    assert reply.json["error"]["param"] == "input"
    assert "messages" not in reply.json["error"]["message"]


@pytest.mark.parametrize(("text", "cities"), [(CALL, ["Athens"]), (TWO_CALLS, ["Athens", "Paris"])])
async def test_calls_and_their_results(text: str, cities: list[str]) -> None:
    """One or several; each has an id of its own, in the stream as in the whole."""
    async with whole_gateway(FakeWorker(text=text)) as whole:
        body = await asked(whole, "The weather?", tools=[TOOL])
        calls = [item for item in body["output"] if item["type"] == "function_call"]
        assert [msgspec.json.decode(call["arguments"])["city"] for call in calls] == cities
        assert len({call["call_id"] for call in calls}) == len(cities)
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": f"{at} degrees"}
            for at, call in enumerate(calls)
        ]
        await asked(whole, [*body["output"], *results], tools=[TOOL])
        shown = prompt(whole)
        assert all(f"{at} degrees" in shown for at in range(len(cities)))
        reply = await whole.post(PATH, model="alpha", input="x", tools=[TOOL], stream=True)
    streamed = check_responses(reply.body).items
    assert [item["name"] for item in streamed] == ["get_weather"] * len(cities)


@pytest.mark.parametrize(
    ("choice", "is_shown"),
    [
        ("none", False),
        ("auto", True),
        ({"type": "function", "name": "get_weather"}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [TOOL]}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "other"}]}, False),
        ({"type": "web_search_preview"}, True),
    ],
    ids=("none", "auto", "named", "allowed", "not allowed", "hosted"),
)
async def test_the_choice_decides_which_tools_are_shown(choice: Any, is_shown: bool) -> None:
    """The choice decides which tools the model is shown, and the response repeats it."""
    async with whole_gateway() as whole:
        body = await asked(whole, "Hi", tools=[TOOL], tool_choice=choice)
        assert ("The weather of a city." in prompt(whole)) == is_shown
    assert body["tool_choice"] == choice


async def test_what_the_request_says_is_repeated() -> None:
    """Known fields, also those without effect; unknown ones and hosted tools are no error."""
    fields: dict[str, Any] = {
        "metadata": {"a": "b"},
        "max_output_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.9,
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
        "top_logprobs": 2,
        "text": {"format": {"type": "text"}},
    }
    ignored = {"service_tier": "flex", "truncation": "auto", "max_tool_calls": 3, "odd": [1]}
    hosted = [{"type": "web_search"}, {"type": "image_generation"}, {"type": "mcp"}]
    async with whole_gateway() as whole:
        body = await asked(whole, "Hi", tools=[*hosted, TOOL], **fields, **ignored)
    assert {name: body[name] for name in fields} == fields
    assert body["tools"] == [TOOL]


async def test_each_response_has_ids_of_its_own() -> None:
    """Each response and its items have ids of their own; the checker sees that those of a stream do
    not change.
    """
    async with whole_gateway() as whole:
        first, second = await asked(whole, "Hi"), await asked(whole, "Hi")
        reply = await whole.post(PATH, model="alpha", input="Hi", stream=True)
    third = check_responses(reply.body).response
    assert third is not None
    responses = (first, second, third)
    assert len({one["id"] for one in responses}) == 3
    assert len({one["output"][0]["id"] for one in responses}) == 3


async def test_a_probe_of_nothing_is_answered() -> None:
    """codex asks so whether a model is there."""
    async with whole_gateway() as whole:
        body = await asked(whole, [], max_output_tokens=1)
    assert body["status"] == "incomplete"


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "xml"}, "text.format.type"),
        ({"type": "json_schema", "name": "x"}, "text.format.schema"),
        ({"type": "json_schema", "name": "x", "strict": True, "schema": {}}, "text.format.schema"),
    ],
)
async def test_a_form_that_cannot_be_served_is_called_as_the_client_does(
    form: dict[str, Any], param: str
) -> None:
    """A form that cannot be served is called by the client's own field, and not by that of a chat,
    whether the body is wrong or no engine can enforce it.
    """
    async with whole_gateway() as whole:
        reply = await whole.post(PATH, model="alpha", input="x", text={"format": form})
    assert (reply.status, reply.json["error"]["param"]) == (400, param)
    assert f"'{param}'" in reply.json["error"]["message"]
    assert "response_format" not in reply.json["error"]["message"]


async def test_a_call_that_is_cut_is_incomplete() -> None:
    """codex makes the call of an item once it is done; what comes before the cut is complete."""
    async with whole_gateway(FakeWorker(text=TWO_CALLS[:-16])) as whole:
        body = await asked(whole, "The weather?", tools=[TOOL])
        reply = await whole.post(PATH, model="alpha", input="x", tools=[TOOL], stream=True)
    assert body["status"] == "incomplete"
    for items in (body["output"], check_responses(reply.body).items):
        calls = [item for item in items if item["type"] == "function_call"]
        assert [call["status"] for call in calls] == ["completed", "incomplete"]


@pytest.mark.parametrize(
    "fields",
    [
        {"input": 5},
        {"input": "x", "stream": "yes"},
        {"input": "x", "temperature": -1},
        {"input": "x", "max_output_tokens": 0},
        {"input": "x", "tools": "none"},
        {"input": "x", "top_logprobs": 99},
        {"input": "x", "conversation": 5},
        {},
    ],
)
async def test_what_cannot_be_meant_is_one_clear_error(fields: dict[str, Any]) -> None:
    """A 400 before anything else; only the lack of a model or an input names no value."""
    async with whole_gateway() as whole:
        body = {"model": "alpha", **fields} if fields else {}
        reply = await whole.post(PATH, **body)
    assert reply.status == 400
    assert reply.json["error"]["type"] == "invalid_request_error"
