"""Compaction by the Responses API: one sealed item, behind the prompt of the conversation."""

from typing import Any

import msgspec
import pytest

from gateway.api.signatures import Signer
from protocol.messages import Submit
from tests.fakes.text_files import make_tokenizer
from tests.fakes.whole_gateway import WholeGateway, whole_gateway
from tests.fakes.worker import FakeWorker, prompt_ids

PATH = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
SAID = [
    {"role": "user", "content": "The weather?"},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"city":"Athens"}'},
    {"type": "function_call_output", "call_id": "c", "output": "warm"},
    {"role": "user", "content": "And what did I ask?"},
]
TRIGGER = {"type": "compaction_trigger"}
SUMMARY = "You asked for the weather."
FIELDS: dict[str, Any] = {"model": "alpha", "tools": [TOOL], "instructions": "Be kind."}


def prompt(whole: WholeGateway) -> str:
    """The last prompt of the worker."""
    ids = prompt_ids(whole.worker.all_of(Submit)[-1])
    return make_tokenizer().decode(ids, skip_special_tokens=False)


def decode_events(body: bytes) -> list[Any]:
    """The data of each event."""
    lines = [line for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [msgspec.json.decode(line[6:]) for line in lines]


def only(items: list[dict[str, Any]]) -> dict[str, Any]:
    (item,) = items
    assert item.keys() == {"id", "type", "encrypted_content"}
    assert item["type"] == "compaction"
    assert item["id"].startswith("cmp_")
    return item


async def compacted(whole: WholeGateway, way: str) -> dict[str, Any]:
    """The item, by each way to it."""
    if way == "endpoint":
        reply = await whole.post(f"{PATH}/compact", input=SAID, **FIELDS)
        assert reply.json["object"] == "response.compaction"
        assert reply.json["usage"]["output_tokens"] > 0
        return only(reply.json["output"])
    reply = await whole.post(PATH, input=[*SAID, TRIGGER], stream=way == "stream", **FIELDS)
    assert reply.status == 200, reply
    if way == "whole":
        assert reply.json["status"] == "completed"
        return only(reply.json["output"])
    events = decode_events(reply.body)
    kinds = [event["type"] for event in events]
    assert kinds[-3:] == [
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    assert only(events[-1]["response"]["output"]) == events[-2]["item"]
    return only([events[-2]["item"]])


@pytest.mark.parametrize("way", ["whole", "stream", "endpoint"])
async def test_a_summary_is_one_sealed_item_and_is_read_back(way: str) -> None:
    """A summary is asked for behind the unchanged prompt of the conversation, sealed so that only
    Herma can write one, and read back.
    """
    async with whole_gateway(FakeWorker(text=SUMMARY)) as whole:
        await whole.post(PATH, input=SAID, **FIELDS)
        before = prompt(whole)
        item = await compacted(whole, way)
        asked = prompt(whole)
        end = before.rindex("And what did I ask?")
        assert asked.startswith(before[:end])
        assert "Write the summary now" in asked[end:]
        assert SUMMARY not in msgspec.json.encode(item).decode()
        follow = {"role": "user", "content": "Go on."}
        await whole.post(PATH, input=[item, follow], **FIELDS)
        last = prompt(whole)
        assert last.index("Be kind.") < last.index(SUMMARY) < last.index("Go on.")
        assert "warm" not in last
        foreign = {**item, "encrypted_content": Signer(b"x" * 32).sealed("evil", b"compaction")}
        await whole.post(PATH, input=[foreign, follow], **FIELDS)
        assert "evil" not in prompt(whole)
        assert "summary of another server" in prompt(whole)


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary", "context_compaction"])
async def test_each_kind_of_compaction_is_understood(kind: str) -> None:
    """codex has several; one without content stands for nothing."""
    async with whole_gateway(FakeWorker(text=SUMMARY)) as whole:
        item = await compacted(whole, "whole")
        given = [{**item, "type": kind}, {"type": kind}, {"role": "user", "content": "Go on."}]
        reply = await whole.post(PATH, input=given, **FIELDS)
        assert reply.status == 200
        assert prompt(whole).count(SUMMARY) == 1


async def test_reasoning_is_no_summary() -> None:
    """A sealed thought is not taken for one, nor the other way round."""
    async with whole_gateway(FakeWorker(text=SUMMARY)) as whole:
        item = await compacted(whole, "whole")
        thought = {"type": "reasoning", "encrypted_content": item["encrypted_content"]}
        await whole.post(PATH, input=[thought, *SAID], **FIELDS)
        assert SUMMARY not in prompt(whole)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_empty_summary_is_a_failure(stream: bool) -> None:
    """Otherwise the conversation would be gone."""
    async with whole_gateway(FakeWorker(text="\n")) as whole:
        reply = await whole.post(PATH, input=[*SAID, TRIGGER], stream=stream, **FIELDS)
    response = decode_events(reply.body)[-1]["response"] if stream else reply.json
    assert (response["status"], response["output"]) == ("failed", [])
    assert "no summary" in response["error"]["message"]


async def test_a_stored_conversation_goes_on_from_its_compaction() -> None:
    """A stored conversation sends only what follows the last compaction in its chain of
    responses.
    """
    async with whole_gateway(FakeWorker(text=SUMMARY)) as whole:
        first = (await whole.post(PATH, input=SAID, **FIELDS)).json["id"]
        second = (
            await whole.post(PATH, input=[TRIGGER], previous_response_id=first, **FIELDS)
        ).json["id"]
        await whole.post(PATH, input="Go on.", previous_response_id=second, **FIELDS)
        last = prompt(whole)
        assert last.index(SUMMARY) < last.index("Go on.")
        assert "warm" not in last


async def test_a_conversation_goes_on_from_its_compaction() -> None:
    """What was before is listed, and no longer sent; an old demand is not answered again."""
    async with whole_gateway(FakeWorker(text=SUMMARY)) as whole:
        made = await whole.post("/v1/conversations", items=SAID)
        name = made.json["id"]
        first = await whole.post(PATH, input=[TRIGGER], conversation=name, **FIELDS)
        only(first.json["output"])
        second = await whole.post(PATH, input="Go on.", conversation=name, **FIELDS)
        assert second.json["output"][0]["type"] == "message"
        last = prompt(whole)
        assert last.index(SUMMARY) < last.index("Go on.")
        assert "warm" not in last


async def test_a_demand_that_was_answered_is_not_repeated() -> None:
    """A demand for a compaction that was answered is not repeated: only the last item asks for
    one.
    """
    async with whole_gateway(FakeWorker(text=SUMMARY)) as whole:
        given = [*SAID, TRIGGER, {"role": "user", "content": "Go on."}]
        reply = await whole.post(PATH, input=given, **FIELDS)
        assert reply.json["output"][0]["type"] == "message"
        assert "Write the summary now" not in prompt(whole)
