"""An agent's turns through the three APIs, in the formats of the mixtures that run: thoughts, a
word beside two calls at once, results that are lists, errors and pictures in another order than
their calls, the answer, and the next question. What comes back is sent back as it came; what a
worker is asked for is what the family's own template makes.

Qwen3.5's mixtures and Qwen3-Next's coders share a format, Qwen3's mixtures and Qwen3-Next's
instructed models another.
"""

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from transformers import PreTrainedTokenizerFast

from protocol.messages import ENFORCES_GRAMMARS, Submit
from tests.fakes.family_templates import family_files
from tests.fakes.whole_gateway import whole_gateway
from tests.fakes.worker import FakeWorker, prompt_ids

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"zone": {"type": "string"}},
    "required": ["zone"],
    "additionalProperties": False,
}
FUNCTION: Final = {"name": "f", "description": "The weather", "parameters": SCHEMA}
PNG: Final = "iVBORw0KGgoAAAANSUhEUg=="
LEFT_OUT: Final = "[A picture was here. It was left out, because this model reads only text.]"
ROME, OSLO = f"see\n{LEFT_OUT}", "no such\ncity"
THOUGHT, SAID = "Two cities.", "I look."

CODER: Final = (
    "<tool_call>\n<function=f>\n<parameter=zone>\n{}\n</parameter>\n</function>\n</tool_call>"
)
HARMONY: Final = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"zone": "{}"}}'
HERMES: Final = '<tool_call>\n{{"name": "f", "arguments": {{"zone": "{}"}}}}\n</tool_call>'
ANSWERS: Final = {
    "qwen3_moe": f"<think>\n{THOUGHT}\n</think>\n\n{SAID}\n"
    f"{HERMES.format('Rome')}\n{HERMES.format('Oslo')}",
    "qwen3_5": f"{THOUGHT}\n</think>\n\n{SAID}\n\n{CODER.format('Rome')}\n{CODER.format('Oslo')}",
    "gpt_oss": f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>"
    f"commentary<|message|>{SAID}<|end|><|start|>assistant{HARMONY.format('Rome')}<|call|>"
    f"<|start|>assistant{HARMONY.format('Oslo')}<|call|>",
}
"""What each model writes: thoughts, a word for the user, and two calls."""


class Chat:
    """How a client of the chat API writes its turns, and reads an answer."""

    path = "/v1/chat/completions"

    def __init__(self) -> None:
        self.turns: list[Any] = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "weather?"},
        ]

    def body(self) -> dict[str, Any]:
        """The request."""
        tool = {"type": "function", "function": {**FUNCTION, "strict": True}}
        return {"messages": self.turns, "tools": [tool], "reasoning_effort": "high"}

    def keep(self, answer: dict[str, Any]) -> tuple[str, str, list[tuple[str, Any]]]:
        """Thoughts, text and calls of an answer, which becomes a turn."""
        message = answer["choices"][0]["message"]
        self.turns.append(message)
        self.calls = message["tool_calls"]
        functions = [call["function"] for call in self.calls]
        found = [(one["name"], json.loads(one["arguments"])) for one in functions]
        return message["reasoning"], message["content"], found

    def results(self) -> None:
        """The results of the two calls, the last one first."""
        rome, oslo = (call["id"] for call in self.calls)
        text = [{"type": "text", "text": part} for part in OSLO.split("\n")]
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
        see = [{"type": "text", "text": "see"}, picture]
        self.turns += [
            {"role": "tool", "tool_call_id": oslo, "content": text},
            {"role": "tool", "tool_call_id": rome, "content": see},
        ]

    def go_on(self, text: str, question: str) -> None:
        """An answer without calls, and the user's next question."""
        self.turns += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": question},
        ]


class Responses(Chat):
    """An agent's turns by the Responses API."""

    path = "/v1/responses"

    def body(self) -> dict[str, Any]:
        tool = {"type": "function", **FUNCTION, "strict": True}
        effort = {"reasoning": {"effort": "high"}, "include": ["reasoning.encrypted_content"]}
        return {"input": self.turns, "tools": [tool], "store": False, **effort}

    def keep(self, answer: dict[str, Any]) -> tuple[str, str, list[tuple[str, Any]]]:
        items = answer["output"]
        self.turns += items
        thought, message, *self.calls = items
        assert (thought["type"], message["type"]) == ("reasoning", "message")
        found = [(one["name"], json.loads(one["arguments"])) for one in self.calls]
        return thought["content"][0]["text"], message["content"][0]["text"], found

    def results(self) -> None:
        rome, oslo = (call["call_id"] for call in self.calls)
        text = [{"type": "input_text", "text": part} for part in OSLO.split("\n")]
        picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
        see = [{"type": "input_text", "text": "see"}, picture]
        self.turns += [
            {"type": "function_call_output", "call_id": oslo, "output": text},
            {"type": "function_call_output", "call_id": rome, "output": see},
        ]


class Messages(Chat):
    """An agent's turns by Anthropic's API."""

    path = "/v1/messages"

    def body(self) -> dict[str, Any]:
        fields = {key: FUNCTION[key] for key in ("name", "description")}
        return {
            "system": "Be brief.",
            "messages": self.turns[1:],
            "tools": [{**fields, "input_schema": SCHEMA, "strict": True}],
            "max_tokens": 999,
            "thinking": {"type": "enabled", "budget_tokens": 500},
            "output_config": {"effort": "high"},
        }

    def keep(self, answer: dict[str, Any]) -> tuple[str, str, list[tuple[str, Any]]]:
        blocks = answer["content"]
        self.turns.append({"role": "assistant", "content": blocks})
        thought, text, *self.calls = blocks
        found = [(one["name"], one["input"]) for one in self.calls]
        return thought["thinking"], text["text"], found

    def results(self) -> None:
        rome, oslo = (call["id"] for call in self.calls)
        source = {"type": "base64", "media_type": "image/png", "data": PNG}
        text = [{"type": "text", "text": part} for part in OSLO.split("\n")]
        see = [{"type": "text", "text": "see"}, {"type": "image", "source": source}]
        blocks = [
            {"type": "tool_result", "tool_use_id": oslo, "content": text, "is_error": True},
            {"type": "tool_result", "tool_use_id": rome, "content": see},
        ]
        self.turns.append({"role": "user", "content": blocks})


def _theirs(folder: Path, name: str, *, goes_on: bool) -> str:
    """The prompt behind the results by transformers; with `goes_on` the one of a next question."""
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": {"zone": zone}}}
        for zone in ("Rome", "Oslo")
    ]
    results = [{"role": "tool", "content": text} for text in (ROME, OSLO)]
    first: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "weather?"},
    ]
    if name == "gpt_oss":  # its template has one call in a turn, and text or thoughts beside it
        beside = {"thinking": f"{THOUGHT}\n\n{SAID}"}
        first += [
            {"role": "assistant", "tool_calls": calls[:1], **beside},
            results[0],
            {"role": "assistant", "tool_calls": calls[1:]},
            results[1],
        ]
    else:
        turn = {"role": "assistant", "content": SAID, "reasoning_content": THOUGHT}
        first += [{**turn, "tool_calls": calls}, *results]
    if goes_on:
        first.append({"role": "assistant", "content": "Rome is fine."})
        first.append({"role": "user", "content": "and Bergen?"})
    made = PreTrainedTokenizerFast.from_pretrained(folder).apply_chat_template(
        first,
        tools=[{"type": "function", "function": FUNCTION}],
        add_generation_prompt=True,
        tokenize=False,
        enable_thinking=True,
        reasoning_effort="high",
    )
    assert isinstance(made, str)
    return made


@pytest.mark.parametrize("api", [Chat, Responses, Messages])
@pytest.mark.parametrize("name", ANSWERS)
async def test_an_agents_turns_are_the_templates(
    name: str, api: type[Chat], tmp_path: Path
) -> None:
    """Thoughts of the running turn are there, those of an earlier one as the template wants."""
    files = family_files(name)
    for file_name, data in files.items():
        (tmp_path / file_name).write_bytes(data)
    worker = FakeWorker(text=ANSWERS[name], files=files)
    worker.facts = msgspec.structs.replace(worker.facts, capabilities=(ENFORCES_GRAMMARS,))
    client = api()
    async with whole_gateway(worker) as whole:
        answer = await whole.post(client.path, model="alpha", **client.body())
        seen = client.keep(answer.json)
        client.results()
        assert (await whole.post(client.path, model="alpha", **client.body())).status == 200
        client.go_on("Rome is fine.", "and Bergen?")
        assert (await whole.post(client.path, model="alpha", **client.body())).status == 200
    assert seen == (THOUGHT, SAID, [("f", {"zone": "Rome"}), ("f", {"zone": "Oslo"})])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    asked = [one for one in worker.heard if isinstance(one, Submit)]
    assert len(asked) == 3
    for submit, goes_on in zip(asked[1:], (False, True), strict=True):
        shown = tokenizer.decode(list(prompt_ids(submit)), skip_special_tokens=False)
        assert shown == _theirs(tmp_path, name, goes_on=goes_on)
        assert submit.grammar is not None
        assert submit.grammar.kind == "lark"
