"""Two turns with a strict tool through the three APIs, in the formats of the mixtures that run:
what a worker is asked for is what the family's own template makes, and its calls are read.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from protocol.messages import ENFORCES_GRAMMARS, Submit
from tests.fakes.family_templates import FAMILY_TEMPLATES, family_files
from tests.fakes.whole_gateway import whole_gateway
from tests.fakes.worker import FakeWorker, prompt_ids

SCHEMA: dict[str, Any] = {
    "required": ["zone", "at"],
    "properties": {
        "zone": {"type": "string", "description": "A city"},
        "at": {
            "required": ["y", "x"],
            "type": "object",
            "properties": {"y": {"type": "integer"}, "x": {"type": "integer"}},
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
    "type": "object",
}
"""Its keys are in no order that a program would make: they reach the template as they are."""

FUNCTION = {"name": "f", "description": "The weather", "parameters": SCHEMA}
ARGUMENTS = {"zone": "Athens", "at": {"y": 2, "x": 1}}
_JSON = '{"zone": "Athens", "at": {"y": 2, "x": 1}}'

ANSWERS = {
    "qwen3_moe": f'<tool_call>\n{{"name": "f", "arguments": {_JSON}}}\n</tool_call>',
    "qwen3_5": "\n</think>\n\n<tool_call>\n<function=f>\n<parameter=zone>\nAthens\n</parameter>\n"
    '<parameter=at>\n{"y": 2, "x": 1}\n</parameter>\n</function>\n</tool_call>',
    "gpt_oss": f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{_JSON}<|call|>",
    "gemma4": '<|tool_call>call:f{at:{x:1,y:2},zone:<|"|>Athens<|"|>}<tool_call|>',
    "glm4_moe_lite": "</think><tool_call>f<arg_key>zone</arg_key><arg_value>Athens</arg_value>"
    '<arg_key>at</arg_key><arg_value>{"y": 2, "x": 1}</arg_value></tool_call>',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
    f"{_JSON}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}
"""What the model writes. Qwen3.5's mixtures and Qwen3-Next's coders share a format of calls."""


def _chat(body: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    (call,) = body["choices"][0]["message"]["tool_calls"]
    return call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])


def _responses(body: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    (item,) = [one for one in body["output"] if one["type"] == "function_call"]
    return item["call_id"], item["name"], json.loads(item["arguments"])


def _messages(body: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    (block,) = [one for one in body["content"] if one["type"] == "tool_use"]
    return block["id"], block["name"], block["input"]


def _asked(api: str, call_id: str = "") -> dict[str, Any]:
    """The question; with `call_id` the one behind that call and its result."""
    user: dict[str, Any] = {"role": "user", "content": "weather?"}
    text = _JSON
    if api == "responses":
        call = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": text}
        result = {"type": "function_call_output", "call_id": call_id, "output": "warm"}
        tools = [{"type": "function", **FUNCTION, "strict": True}]
        return {"input": [user, call, result] if call_id else [user], "tools": tools}
    if api == "messages":
        use = {"type": "tool_use", "id": call_id, "name": "f", "input": ARGUMENTS}
        back = {"type": "tool_result", "tool_use_id": call_id, "content": "warm"}
        tools = [
            {
                "name": "f",
                "description": FUNCTION["description"],
                "input_schema": SCHEMA,
                "strict": True,
            }
        ]
        turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [back]}]
        return {"messages": [user, *turns] if call_id else [user], "tools": tools, "max_tokens": 99}
    made = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": text}}
    turns = [
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": call_id, "content": "warm"},
    ]
    tools = [{"type": "function", "function": {**FUNCTION, "strict": True}}]
    return {"messages": [user, *turns] if call_id else [user], "tools": tools}


APIS = {
    "chat": ("/v1/chat/completions", _chat),
    "responses": ("/v1/responses", _responses),
    "messages": ("/v1/messages", _messages),
}


def _theirs(folder: Path, call_id: str, tools: list[Any], *, thinks: bool, takes_text: bool) -> str:
    """The prompt by transformers. Messages asks for no thoughts unless a client wants them."""
    messages: list[dict[str, Any]] = _asked("chat", call_id)["messages"]
    for message in messages:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = _JSON if takes_text else ARGUMENTS
    made = PreTrainedTokenizerFast.from_pretrained(folder).apply_chat_template(
        messages,
        tools=tools,
        add_generation_prompt=True,
        tokenize=False,
        **({} if thinks else {"enable_thinking": False}),
    )
    assert isinstance(made, str)
    return made


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", ANSWERS)
async def test_both_turns_are_the_templates_and_calls_are_enforced(
    name: str, api: str, tmp_path: Path
) -> None:
    """The call of the first answer goes back with its result, as a client does."""
    files = family_files(name)
    for file_name, data in files.items():
        (tmp_path / file_name).write_bytes(data)
    worker = FakeWorker(text=ANSWERS[name], files=files)
    worker.facts = msgspec.structs.replace(worker.facts, capabilities=(ENFORCES_GRAMMARS,))
    path, call_of = APIS[api]
    async with whole_gateway(worker) as whole:
        first = await whole.post(path, model="alpha", **_asked(api))
        call_id, called, arguments = call_of(first.json)
        await whole.post(path, model="alpha", **_asked(api, call_id))
        await worker.wait(Submit, count=2)
    assert (called, arguments) == ("f", ARGUMENTS)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    asked = [one for one in worker.heard if isinstance(one, Submit)]
    assert len(asked) == 2
    for submit, known in zip(asked, ("", call_id), strict=True):
        tools = [{"type": "function", "function": FUNCTION}]  # `strict` is no word to a model
        shown = tokenizer.decode(list(prompt_ids(submit)), skip_special_tokens=False)
        assert shown == _theirs(
            tmp_path,
            known,
            tools,
            thinks=api != "messages",
            takes_text=FAMILY_TEMPLATES[name].takes_text,
        )
        assert submit.grammar is not None
        assert submit.grammar.kind == "lark"
        assert "f" in submit.grammar.text
    assert "warm" in shown


@pytest.mark.parametrize("thinks", [True, False])
async def test_gemma_may_think_before_its_strict_calls(*, thinks: bool) -> None:
    """The grammar begins behind the thoughts, whose opening tag is the first token of a longer
    text.
    """
    files = family_files("gemma4")
    worker = FakeWorker(text=ANSWERS["gemma4"], files=files)
    worker.facts = msgspec.structs.replace(worker.facts, capabilities=(ENFORCES_GRAMMARS,))
    fields = {**_asked("chat"), "chat_template_kwargs": {"enable_thinking": thinks}}
    async with whole_gateway(worker) as whole:
        await whole.post("/v1/chat/completions", model="alpha", **fields)
        submit = await worker.wait(Submit)
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    shown = tokenizer.decode(list(prompt_ids(submit)), skip_special_tokens=False)
    assert shown.endswith("<|turn>model\n" if thinks else "<|channel>thought\n<channel|>")
    assert submit.grammar is not None
    tags = (submit.grammar.closing_id, submit.grammar.opening_id)
    ids = tuple(tokenizer.token_to_id(tag) for tag in ("<channel|>", "<|channel>"))
    assert tags == (ids if thinks else (None, None))
