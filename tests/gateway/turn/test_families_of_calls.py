"""Families of late 2026 through the whole gateway: the template alone tells how calls and thoughts
are read, and how a demanded call begins.
"""

import json
from typing import Any, NamedTuple

import pytest

from protocol.messages import Submit
from tests.fakes.text_files import make_text_files, make_tokenizer
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
    "Seed-OSS": Case(
        "<seed:tool_call> <function= <seed:think> </seed:think>",
        "assistant\n",
        "<seed:think>Hm</seed:think>\n<seed:tool_call>\n<function=f>\n<parameter=count>1"
        "</parameter>\n</function>\n</seed:tool_call>",
        "</seed:think>\n\n<seed:tool_call>\n<function=f>\n",
    ),
}


def _files(case: Case) -> dict[str, bytes]:
    template = f"{{# {case.sign} #}}{{{{ messages[-1].content }}}}{{{{ {json.dumps(case.end)} }}}}"
    return make_text_files(template=template)


@pytest.mark.parametrize("name", CASES)
async def test_calls_and_thoughts_are_no_text(name: str) -> None:
    """Whole and streamed, and a demanded call begins as the family writes it."""
    case = CASES[name]
    worker = FakeWorker(text=case.answer, files=_files(case))
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
    prompt = make_tokenizer().decode(prompt_ids(demanded), skip_special_tokens=False)
    assert prompt.endswith(case.demanded)
