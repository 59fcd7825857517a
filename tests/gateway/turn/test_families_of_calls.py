"""Families of late 2026 through the whole gateway: the template alone tells how calls and thoughts
are read, and how a demanded call begins.
"""

import json
import re
from typing import Any, NamedTuple

import msgspec
import pytest
from tokenizers import Tokenizer

from protocol.messages import ENFORCES_GRAMMARS, Submit
from tests.fakes.text_files import make_text_files
from tests.fakes.tool_answers import TOOL
from tests.fakes.whole_gateway import whole_gateway
from tests.fakes.worker import FakeWorker, prompt_ids

USER = [{"role": "user", "content": "Hi"}]
P = "]<]minimax[>["


class Case(NamedTuple):
    """What a template shows (`sign`), how it ends a prompt, what the model writes then, and how a
    demanded call begins.
    """

    sign: str
    end: str
    answer: str
    demanded: str


CASES = {
    "gpt-oss": Case(
        "<|channel|>analysis<|message|> to=functions.f<|channel|>commentary json",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.f <|constrain|>json<|message|>{"count": 1}<|call|>',
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
    ),
    "Gemma 4": Case(
        "<|tool_call>call: <|channel>thought <channel|>",
        "<|turn>model\n",
        "<|channel>thought\nHm\n<channel|><|tool_call>call:f{count:1}<tool_call|>",
        "<|channel>thought\n<channel|><|tool_call>call:f",
    ),
    "MiniMax M2": Case(
        "<minimax:tool_call> </think>",
        "ai\n<think>\n",
        'Hm\n</think>\n\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="count">1'
        "</parameter>\n</invoke>\n</minimax:tool_call>",
        '\n</think>\n\n<minimax:tool_call>\n<invoke name="f">\n',
    ),
    "MiniMax M3": Case(
        f"{P} <mm:think> </mm:think>",
        "ai\n",
        f'<mm:think>Hm</mm:think>{P}<tool_call>\n{P}<invoke name="f">{P}<count>1{P}</count>'
        f"{P}</invoke>\n{P}</tool_call>",
        f'</mm:think>{P}<tool_call>\n{P}<invoke name="f">',
    ),
    "LFM2.5": Case(
        "<|tool_call_start|> </think>",
        "assistant\n",
        "<think>Hm</think><|tool_call_start|>[f(count=1)]<|tool_call_end|>",
        "<|tool_call_start|>[f",
    ),
    "Apertus": Case(
        "<|tools_prefix|> <|inner_prefix|> <|inner_suffix|>",
        "<|assistant_start|>",
        '<|inner_prefix|>Hm<|inner_suffix|><|tools_prefix|>[{"f": {"count": 1}}]<|tools_suffix|>',
        '<|inner_prefix|><|inner_suffix|><|tools_prefix|>[{"f":',
    ),
    "Granite 3": Case(
        "<|tool_call|> followed by a JSON list </think>",
        "assistant",
        '<think>Hm</think><|tool_call|>[{"name": "f", "arguments": {"count": 1}}]',
        '<|tool_call|>[{"name": "f", "arguments":',
    ),
    "Nemotron Nano v2": Case(
        "<TOOLCALL>[</TOOLCALL> </think>",
        "Assistant\n<think>\n",
        'Hm</think>\n<TOOLCALL>[{"name": "f", "arguments": {"count": 1}}]</TOOLCALL>',
        '</think>\n\n<TOOLCALL>[{"name": "f", "arguments":',
    ),
    "Muse Glimmer": Case(
        "<atem:function_calls> to=self<|message|>",
        "<|start|>assistant",
        " to=self<|message|>Hm<|eom|><|start|>assistant to=f<|message|><atem:function_calls>\n"
        '<atem:invoke name="f">\n<atem:parameter name="count">1</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls><|eot|>",
        '<|start|>assistant to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n',
    ),
    "Seed-OSS": Case(
        "<seed:tool_call> <function= <seed:think> </seed:think>",
        "assistant\n",
        "<seed:think>Hm</seed:think>\n<seed:tool_call>\n<function=f>\n<parameter=count>1"
        "</parameter>\n</function>\n</seed:tool_call>",
        "</seed:think>\n\n<seed:tool_call>\n<function=f>\n",
    ),
    "Hy3": Case(
        "'<arg_key{}>' '<think{}>'",
        "Assistant",
        "<think:opensource>Hm</think:opensource><tool_calls:opensource>\n<tool_call:opensource>f"
        "<tool_sep:opensource>\n<arg_key:opensource>count</arg_key:opensource>\n"
        "<arg_value:opensource>1</arg_value:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
        "<think:opensource></think:opensource><tool_calls:opensource>\n<tool_call:opensource>f"
        "<tool_sep:opensource>\n",
    ),
    "Kimi K3": Case(
        "'<|open|>'",
        "<|open|>think<|sep|>",
        "Hm<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="count" '
        'type="number"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        "<|close|>message<|sep|>",
        "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>',
    ),
    "MiniCPM5": Case(
        '<function name="f"> </think>',
        "assistant\n",
        '<think>\nHm\n</think>\n\n<function name="f"><param name="count">1</param></function>',
        '<think>\n\n</think>\n\n<function name="f',
    ),
    "Solar Open": Case(
        "<|tool_call:args|> <|begin|>assistant<|think|>",
        "<|begin|>assistant",
        "<|think|>Hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5"
        '<|tool_call:name|>f<|tool_call:args|>{"count": 1}<|tool_call:end|><|calls|>',
        "<|begin|>assistant<|tool_calls|><|tool_call:begin|>call_0<|tool_call:name|>f"
        "<|tool_call:args|>",
    ),
    "GigaChat 3.1": Case(
        "<|function_call|> </think>",
        "assistant<|role_sep|>\n",
        '<think>Hm</think><|function_call|>{"name": "f", "arguments": {"count": 1}}<|message_sep|>',
        '<|function_call|>{"name": "f", "arguments":',
    ),
}


def tags_in(answer: str) -> tuple[str, ...]:
    """Tags of an answer that a tokenizer may have as tokens: those without a name in them."""
    found = re.findall(r"<\|?/?[\w:]+\|?>|\[/?[A-Z_]+\]|]<]minimax\[>\[", answer)
    return tuple(sorted(set(found) - {"<f>"}))


def _template(case: Case) -> str:
    return f"{{# {case.sign} #}}{{{{ messages[-1].content }}}}{{{{ {json.dumps(case.end)} }}}}"


@pytest.mark.parametrize("has_tokens", [False, True])
@pytest.mark.parametrize("name", CASES)
async def test_calls_and_thoughts_are_no_text(name: str, *, has_tokens: bool) -> None:
    """Whole and streamed, and a demanded call begins as the family writes it; whether or not its
    tags are tokens.
    """
    case = CASES[name]
    tokens = tags_in(case.answer) if has_tokens else ()
    files = make_text_files(template=_template(case), tokens=tokens)
    worker = FakeWorker(text=case.answer, files=files)
    asked: dict[str, Any] = {"model": "alpha", "messages": USER, "tools": [TOOL]}
    async with whole_gateway(worker) as whole:
        (choice,) = (await whole.post("/v1/chat/completions", **asked)).json["choices"]
        events = await whole.stream("/v1/chat/completions", **asked)
        await whole.post("/v1/chat/completions", **asked, tool_choice="required")
        demanded = await worker.wait(Submit, count=3)
    message = choice["message"]
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "f"
    assert json.loads(call["function"]["arguments"]) == {"count": 1}
    assert (message["content"], message["reasoning"]) == (None, "Hm")
    assert choice["finish_reason"] == "tool_calls"
    deltas = [one["choices"][0]["delta"] for one in events[:-1] if one["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == ""
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == "Hm"
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    prompt = tokenizer.decode(prompt_ids(demanded), skip_special_tokens=False)
    assert prompt.endswith(case.demanded)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
STRICT_TOOL: Any = {**TOOL, "function": {**TOOL["function"], "strict": True}}
MESSAGE_TAGS = {
    "gpt-oss": (
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|constrain|>",
        "<|call|>",
    ),
    "Kimi K3": ("<|open|>", "<|close|>", "<|sep|>"),
    "Solar Open": (
        "<|begin|>",
        "<|think|>",
        "<|content|>",
        "<|end|>",
        "<|tool_calls|>",
        "<|calls|>",
        "<|tool_call:begin|>",
        "<|tool_call:name|>",
        "<|tool_call:args|>",
        "<|tool_call:end|>",
    ),
}
"""Families whose text stands between tags, as their calls do."""

ANSWER = {
    "gpt-oss": "<|start|>assistant<|channel|>final<|message|>",
    "Kimi K3": "<|close|>think<|sep|><|open|>response<|sep|>",
    "Solar Open": "<|begin|>assistant<|content|>",
}


async def _submitted(name: str, *capabilities: str, **fields: Any) -> tuple[Submit, str]:
    """What a worker that enforces grammars is asked, and the text of the prompt."""
    files = make_text_files(tokens=MESSAGE_TAGS[name], template=_template(CASES[name]))
    worker = FakeWorker(text="ok", files=files)
    able = capabilities or (ENFORCES_GRAMMARS,)
    worker.facts = msgspec.structs.replace(worker.facts, capabilities=able)
    async with whole_gateway(worker) as whole:
        await whole.post("/v1/chat/completions", model="alpha", messages=USER, **fields)
        submit = await worker.wait(Submit)
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    return submit, tokenizer.decode(prompt_ids(submit), skip_special_tokens=False)


@pytest.mark.parametrize("name", MESSAGE_TAGS)
async def test_json_is_enforced_behind_the_tags_of_the_answer(name: str) -> None:
    """An engine that takes schemas alone, and knows only where the thoughts end, would forbid the
    tags behind them.
    """
    able = f"{ENFORCES_GRAMMARS}:json_schema"
    submit, prompt = await _submitted(name, able, response_format=JSON)
    assert prompt.endswith(ANSWER[name])
    assert submit.grammar is not None
    assert (submit.grammar.kind, submit.grammar.closing_id) == ("json_schema", None)


@pytest.mark.parametrize("name", MESSAGE_TAGS)
async def test_a_model_may_think_before_json(name: str) -> None:
    """A model may think before JSON where the engine takes a grammar that reads the thoughts."""
    submit, prompt = await _submitted(name, response_format=JSON)
    assert prompt.endswith(CASES[name].end)
    assert submit.grammar is not None
    assert (submit.grammar.kind, submit.grammar.closing_id) == ("lark", None)
    start, content, *_ = submit.grammar.text.split("\n")
    assert " content " in start
    assert "call" not in start
    assert content.startswith("content: %json {")


@pytest.mark.parametrize("name", MESSAGE_TAGS)
async def test_the_grammar_of_calls_begins_with_the_thoughts(name: str) -> None:
    """The grammar of calls begins with thoughts, which are free, so that a model may think before a
    strict call.
    """
    submit, prompt = await _submitted(name, tools=[STRICT_TOOL])
    assert prompt.endswith(CASES[name].end)
    assert submit.grammar is not None
    assert (submit.grammar.kind, submit.grammar.closing_id) == ("lark", None)
    start = submit.grammar.text.partition("\n")[0]
    assert " TEXT <[" in start


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_the_beginning_of_an_answer_is_behind_its_tags(path: str) -> None:
    """Thoughts that the prompt has opened with a tag of several tokens are closed before it."""
    name = "Kimi K3"
    files = make_text_files(tokens=MESSAGE_TAGS[name], template=_template(CASES[name]))
    worker = FakeWorker(text="ok", files=files)
    asked = [*USER, {"role": "assistant", "content": "Yes"}]
    fields = {"messages": asked, "continue_final_message": True, "add_generation_prompt": False}
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    async with whole_gateway(worker) as whole:
        reply = await whole.post(path, model="alpha", **fields)
        ids = reply.json["tokens"] if path == "/tokenize" else prompt_ids(await worker.wait(Submit))
    shown = tokenizer.decode(list(ids), skip_special_tokens=False)
    assert shown.endswith(f"<|open|>think<|sep|>{ANSWER[name]}Yes")


async def test_a_template_sees_the_time_without_its_zone() -> None:
    """A template sees the time without its zone, as in transformers, whose time has none."""
    files = make_text_files(template="{{ strftime_now('[%Y%Z%z]') }}{{ messages[-1].content }}")
    worker = FakeWorker(text="ok", files=files)
    async with whole_gateway(worker) as whole:
        await whole.post("/v1/chat/completions", model="alpha", messages=USER)
        submit = await worker.wait(Submit)
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    shown = tokenizer.decode(prompt_ids(submit), skip_special_tokens=False)
    assert re.fullmatch(r"\[20\d\d]Hi", shown)
