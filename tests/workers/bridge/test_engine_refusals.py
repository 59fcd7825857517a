"""What an engine refuses within an answer, over real HTTP."""

import json
from array import array

import pytest

from protocol.sampling import SamplingParams
from tests.fakes.scripted_http import ScriptedServer, open_server
from workers.bridge.engine_client import EngineClient, EngineRefusal
from workers.external import EngineTrouble, ExternalAnswer, SglangApi

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
LONG = (
    "The input (60000 tokens) is longer than the model's context length (32768 tokens).",
    "Input length (60000 tokens) exceeds the maximum allowed length (49994 tokens).",
)
FIRST = {"output_ids": [5], "meta_info": {"prompt_tokens": 3, "completion_tokens": 1}}


def event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


async def answer_of(*events: bytes) -> ExternalAnswer:
    sampling = SamplingParams(max_tokens=9, temperature=0.0)
    answer = ExternalAnswer(
        array("I", [1, 2, 3]), array("I"), sampling, seed=0, salt=b"", max_outputs=9,
        eos_ids=frozenset(), vocab_size=None,
    )  # fmt: skip
    api, failure = SglangApi(), None
    async with open_server(ScriptedServer([HEAD, *events], ends=True)) as server:
        url = server.url.removesuffix("/v1")
        client = EngineClient(url, api, api_key=None, max_connections=1)
        try:
            await client.answer(api, answer, lambda _: None)
        except (EngineRefusal, EngineTrouble) as error:
            failure = error  # raised here, it would be within a group
        client.close()
    if failure is not None:
        raise failure
    return answer


@pytest.mark.parametrize("text", LONG)
async def test_a_prompt_that_is_too_long_is_refused_as_such(text: str) -> None:
    """Though SGLang says it with status 200: agents shorten their history then."""
    with pytest.raises(EngineRefusal) as refused:
        await answer_of(event({"error": {"message": text}}), b"data: [DONE]\n\n")
    assert refused.value.reason == "too_long"


async def test_another_error_is_a_failure_and_so_is_any_behind_tokens() -> None:
    """Another worker may do better."""
    with pytest.raises(EngineTrouble, match="hot"):
        await answer_of(event({"error": {"message": "It is hot."}}))
    with pytest.raises(EngineTrouble, match="context"):
        await answer_of(event(FIRST), event({"error": {"message": LONG[0]}}))
