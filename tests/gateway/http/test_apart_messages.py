"""Messages that are no answers: a summary of the conversation, and a prompt for the caches."""

from typing import Any

from protocol.messages import Submit
from tests.fakes.text_files import make_tokenizer
from tests.fakes.whole_gateway import WholeGateway, whole_gateway
from tests.fakes.worker import FakeWorker, prompt_ids
from tests.gateway.http.test_messages import CALL, PATH, TOOL, USER, streamed

SUMMED = "They looked."


async def both(whole: WholeGateway, **fields: Any) -> dict[str, Any]:
    """The message whole, which is the same streamed."""
    reply = await whole.post(PATH, model="alpha", messages=USER, **fields)
    assert reply.status == 200, reply
    stream = (await streamed(whole, **fields)).message
    assert stream is not None
    for name in ("content", "stop_reason", "stop_sequence"):
        assert stream[name] == reply.json[name]
    assert stream["usage"]["output_tokens"] == reply.json["usage"]["output_tokens"]
    return dict(reply.json)


def last_prompt(whole: WholeGateway) -> str:
    submit = whole.worker.all_of(Submit)[-1]
    return make_tokenizer().decode(prompt_ids(submit), skip_special_tokens=False)


async def test_a_prompt_can_be_cached_without_an_answer() -> None:
    """By a bound of no tokens, also where a call is demanded and where the model thinks."""
    given: list[dict[str, Any]] = [
        {},
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
        {"tools": [TOOL], "thinking": {"type": "adaptive"}},
    ]
    async with whole_gateway(FakeWorker(text=CALL)) as whole:
        for fields in given:
            message = await both(whole, max_tokens=0, **fields)
            assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
            assert message["usage"]["output_tokens"] == 0
            assert whole.worker.all_of(Submit)[-1].sampling.max_tokens == 1
        cold = await whole.post(PATH, model="alpha", messages=USER, max_tokens=1, tools=[TOOL])
        assert cold.json["usage"]["cache_read_input_tokens"] > 0


async def test_a_summary_comes_alone() -> None:
    """A summary comes without thoughts, and without calls though the prompt begins with the tools;
    it stands for the conversation when it comes back.
    """
    compaction = {"type": "summarize"}
    async with whole_gateway(FakeWorker(text=f"<think>Hm.</think>{SUMMED}")) as whole:
        fields: dict[str, Any] = {"tools": [TOOL], "max_tokens": 500, "compaction": compaction}
        message = await both(whole, **fields)
        assert message["content"] == [{"type": "compaction", "content": SUMMED}]
        assert (message["stop_reason"], message["stop_sequence"]) == ("compaction", None)
        prompt = last_prompt(whole)
        assert "get_weather" in prompt
        assert "Write the summary now" in prompt
        own = {**compaction, "instructions": " In one word. "}
        await both(whole, **{**fields, "compaction": own, "tool_choice": {"type": "none"}})
        prompt = last_prompt(whole)
        assert "In one word." in prompt
        assert "Write the summary now" not in prompt
        assert "get_weather" in prompt
        back = [{"role": "assistant", "content": message["content"]}, *USER]
        reply = await whole.post(PATH, model="alpha", max_tokens=5, messages=back)
        assert reply.status == 200
        assert SUMMED in last_prompt(whole)
        counted = [
            await whole.post(f"{PATH}/count_tokens", model="alpha", messages=USER, **more)
            for more in ({}, {"compaction": compaction})
        ]
        assert counted[0].json == counted[1].json


async def test_a_summary_that_the_model_did_not_write_is_null() -> None:
    """Clients take it as a compaction that failed, and go on."""
    async with whole_gateway(FakeWorker(text="")) as whole:
        message = await both(whole, max_tokens=500, compaction={"type": "summarize"})
    assert message["content"] == [{"type": "compaction", "content": None}]
