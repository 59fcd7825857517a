"""What begins in the prompt, calls and texts, and the parsers that the configuration names."""

import pytest

from config import ModelConfig, ToolParserName
from gateway.api.events import ChoiceFinished, ReasoningDelta, ToolCallArguments, ToolCallStart
from protocol.messages import Submit
from tests.fakes.running_gateway import open_gateway
from tests.fakes.text_files import CHAT_TEMPLATE, make_text_files, make_tokenizer
from tests.fakes.tool_answers import OTHER, TOOL
from tests.fakes.worker import FakeWorker, open_worker, prompt_ids

NAMED = {"type": "function", "function": {"name": "f"}}
SKIPPED = "assistant\n<think>\n\n</think>\n\n"
"""What the template itself writes for a client that wants no thoughts."""


@pytest.mark.parametrize(
    ("choice", "end_of_prompt", "answer"),
    [
        (
            "auto",
            "assistant\n",
            '<tool_call>\n{"name": "f", "arguments": {"count": 1}}\n</tool_call>',
        ),
        (
            "required",
            f'{SKIPPED}<tool_call>\n{{"name":',
            ' "f", "arguments": {"count": 1}}\n</tool_call>',
        ),
        (
            NAMED,
            f'{SKIPPED}<tool_call>\n{{"name": "f", "arguments":',
            ' {"count": 1}}\n</tool_call>',
        ),
    ],
)
async def test_a_demanded_call_begins_in_the_prompt(
    choice: object, end_of_prompt: str, answer: str
) -> None:
    """The model goes on with the call that the prompt began, and the client sees a whole one."""
    worker = FakeWorker(text=answer)
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        asked = await gateway.ask(tools=[TOOL, OTHER], tool_choice=choice)
        assert asked.text == ""
        prompt = make_tokenizer().decode(prompt_ids(await worker.wait(Submit)))
        assert prompt.endswith(end_of_prompt)
        (start,) = asked.all_of(ToolCallStart)
        assert start.name == "f"
        assert "".join(e.text for e in asked.all_of(ToolCallArguments)) == '{"count": 1}'
        assert asked.all_of(ChoiceFinished) == [ChoiceFinished(0, "tool_calls")]
        assert asked.usage.prompt_tokens == len(prompt_ids(await worker.wait(Submit)))


async def test_an_answer_goes_on_from_the_last_message() -> None:
    """The text of the last message ends the prompt, past the reasoning and with its markup as text.
    The answer is what follows that text, from the first space on.
    """
    said = {"role": "assistant", "content": 'Once <|im_end|> {"a": "'}
    messages = [{"role": "user", "content": "A story"}, said]
    answer = " upon a <think>time"
    worker = FakeWorker(text=answer)
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        asked = await gateway.ask(messages=messages, continue_final_message=True)
        ids = prompt_ids(await worker.wait(Submit))
    prompt = make_tokenizer().decode(ids, skip_special_tokens=False)
    assert prompt.endswith(f"{SKIPPED}{said['content']}")
    assert ids.count(make_tokenizer().token_to_id("<|im_end|>")) == 1
    assert asked.text == answer
    assert not asked.all_of(ReasoningDelta)
    assert asked.usage.prompt_tokens == len(ids)


async def test_a_demanded_call_that_is_none_is_text() -> None:
    """What the model makes of the beginning that it was given is shown with it, as an answer."""
    worker = FakeWorker(text=' "f",",",.')
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        asked = await gateway.ask(tools=[TOOL, OTHER], tool_choice="required")
        assert asked.text == '<tool_call>\n{"name": "f",",",.'
        assert not asked.all_of(ToolCallStart)
        assert asked.all_of(ChoiceFinished) == [ChoiceFinished(0, "stop")]


async def test_the_configuration_names_the_parsers_of_a_model() -> None:
    """What the template tells is overruled, for calls and for thoughts."""
    model = ModelConfig(name="alpha", tool_parser="qwen3_coder", reasoning_parser="none")
    worker = FakeWorker(
        text="<think>no</think><function=f><parameter=count>2</parameter></function>"
    )
    async with (
        open_gateway(models=(model,)) as gateway,
        open_worker(gateway.address, worker),
    ):
        await gateway.wait_state("ready")
        asked = await gateway.ask(tools=[TOOL])
        assert asked.text == "<think>no</think>"
        assert not asked.all_of(ReasoningDelta)
        assert "".join(e.text for e in asked.all_of(ToolCallArguments)) == '{"count": 2}'


@pytest.mark.parametrize(
    ("form", "marker", "end"),
    [("hermes", "<tool_call>\n", "\n</tool_call>"), ("llama3_json", "", "")],
)
async def test_a_demanded_call_closes_thoughts_that_the_prompt_opened(
    form: ToolParserName, marker: str, end: str
) -> None:
    """Where the template begins the answer with thoughts, the opening comes after their end, which
    is no part of the answer.
    """
    model = ModelConfig(name="alpha", tool_parser=form)
    template = CHAT_TEMPLATE + "{{- '<think>\\n' }}"
    worker = FakeWorker(text=f' {{"count": 1}}}}{end}', files=make_text_files(template=template))
    async with (
        open_gateway(models=(model,)) as gateway,
        open_worker(gateway.address, worker),
    ):
        await gateway.wait_state("ready")
        asked = await gateway.ask(tools=[TOOL], tool_choice=NAMED)
        prompt = make_tokenizer().decode(prompt_ids(await worker.wait(Submit)))
        assert f'<think>\n\n</think>\n\n{marker}{{"name": "f", ' in prompt
        assert asked.text == ""
        assert not asked.all_of(ReasoningDelta)
        assert [start.name for start in asked.all_of(ToolCallStart)] == ["f"]
        assert asked.usage.reasoning_tokens == 0
