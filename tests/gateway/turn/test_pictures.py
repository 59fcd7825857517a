"""Pictures for a model of text: refused where one is asked about, else a line of text."""

from array import array
from typing import Any

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from config import ModelConfig
from gateway.turn.caller import Caller
from protocol.messages import Submit
from tests.fakes.provider import open_provider
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.text_files import make_text_files
from tests.fakes.worker import open_worker

IMAGE: list[dict[str, Any]] = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
]
CALL = {"id": "c", "type": "function", "function": {"name": "screenshot", "arguments": "{}"}}
SCREEN = [{"type": "text", "text": "done"}, IMAGE[1]]
PAST: dict[str, list[dict[str, Any]]] = {
    "a tool's result": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": SCREEN},
    ],
    "a tool's picture as the user's": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
        {"role": "user", "content": [IMAGE[1]]},
    ],
    "an earlier turn": [
        {"role": "user", "content": IMAGE},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": "And now?"},
    ],
    "a message that was refused before": [
        {"role": "user", "content": IMAGE},
        {"role": "user", "content": "Then go on without."},
    ],
}


@pytest.mark.parametrize("where", PAST)
async def test_a_picture_in_the_history_ends_no_session(where: str) -> None:
    """The model reads that something was left out; it would be in every later request too."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        asked = await gateway.ask(messages=PAST[where])
        assert asked.error is None
        (submit,) = worker.all_of(Submit)
        ids = array("I", submit.prompt_ids)
        tokenizer = Tokenizer.from_str(make_text_files()["tokenizer.json"].decode())
        line = "[A picture was here. It was left out, because this model reads only text.]"
        assert tokenizer.decode(list(ids)).count(line) == 1


async def test_a_tools_picture_is_left_out_of_its_result() -> None:
    """A tool's picture is left out of its result, and does not become a turn of the user, who said
    nothing.
    """
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        await gateway.ask(messages=PAST["a tool's picture as the user's"])
        (submit,) = worker.all_of(Submit)
    tokenizer = Tokenizer.from_str(make_text_files()["tokenizer.json"].decode())
    shown = tokenizer.decode(list(array("I", submit.prompt_ids)), skip_special_tokens=False)
    assert shown.count("<|im_start|>user") == 2
    line = "[A picture was here. It was left out, because this model reads only text.]"
    assert f"<tool_response>\ndone\n{line}\n</tool_response><|im_end|>\n" in shown


async def test_a_model_may_refuse_pictures_in_the_history() -> None:
    """A model whose configuration says so refuses pictures in the history."""
    model = ModelConfig(name="alpha", pictures="refuse")
    async with open_gateway(models=[model]) as gateway, open_worker(gateway.address):
        await gateway.wait_state("ready")
        asked = await gateway.ask(messages=PAST["a tool's result"])
        assert asked.error is not None
        assert (asked.error.status, asked.error.code) == (400, "unsupported_content_part")


async def test_a_provider_sees_the_pictures_of_the_history() -> None:
    """A key that may use none gets the line, and so does a request that all providers fail."""
    async with open_provider() as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address) as worker,
        ):
            await gateway.wait_state("ready")
            messages = PAST["an earlier turn"]
            asked = await gateway.ask(messages=messages)
            assert asked.started.served_by == "cloud:p0"
            assert fake.requests[0].body["messages"] == messages
            private = await gateway.ask(Caller(cloud=False), messages=messages)
            assert private.error is None
            fake.status = 500
            failed = await gateway.ask(messages=messages)
            assert failed.error is None
            assert len(worker.all_of(Submit)) == 2


async def test_a_refused_picture_leaves_the_error_of_the_provider() -> None:
    """Where no worker may stand in, the request is not the fault."""
    async with open_provider() as fake:
        chain, tables = chain_of({"p0": fake})
        model = replace(chain, pictures="refuse")
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address),
        ):
            await gateway.wait_state("ready")
            fake.status = 500
            asked = await gateway.ask(messages=PAST["an earlier turn"])
            assert asked.error is not None
            assert asked.error.code != "unsupported_content_part"
            assert asked.error.status >= 500
