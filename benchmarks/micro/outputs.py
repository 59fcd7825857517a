"""The cost of a streamed token, from its id to the bytes of its chunk.

One token per step, as engines send them, with the built-in model's own tokens: detokenised, matched
against a stop string, split into reasoning, text and calls, and written as server-sent events.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.micro.figures import MicroFigure, lower_quartile_us
from gateway.api.api_format import AnswerHead
from gateway.api.chat_formatter import ChunkFormatter
from gateway.api.events import TurnEvent
from gateway.output.reasoning import ReasoningSplitter
from gateway.output.sequence_output import OutputPipeline, SequenceOutput
from gateway.output.stop_strings import StopMatcher
from gateway.output.tools import ToolParser
from gateway.prompt.model_text import ModelText
from protocol.messages import TokenItem
from protocol.tokens import pack_token

FILES: Final = Path(__file__).parents[2] / "config" / "builtin" / "herma-tiny"
_PROSE: Final = (
    "The gateway keeps every agent on the worker that already holds its conversation, and moves on "
    "to another one when that is lost. Nothing of it is seen by the agents: a pause, no more.\n\n"
    "Prices went from 3.50 to 4.25 (plus 21 %), which is less than a < b would suggest.\n"
) * 8
_CODE: Final = (
    'def f(path: str) -> dict[str, int]:\n    """Sizes of the files below `path`."""\n'
    "    return {p.name: p.stat().st_size for p in Path(path).iterdir() if p.is_file()}\n\n"
) * 8
_ARGUMENTS: Final = json.dumps({"path": "/tmp/a.py", "content": _CODE})
_PROPERTIES: Final = {"path": {"type": "string"}, "content": {"type": "string"}}
_PARAMETERS: Final = {"type": "object", "properties": _PROPERTIES}
_TOOLS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "function", "function": {"name": "write_file", "parameters": _PARAMETERS}},
)


@dataclass(frozen=True)
class WrittenAnswer:
    """`kind` is text, reasoning or call; `form` a tool parser's name. Under 2 % of the tokens are
    of another kind.
    """

    kind: str
    form: str
    text: str


def _parameters(before: str, between: str, after: str, end: str) -> str:
    values = {"path": "/tmp/a.py", "content": _CODE}
    return "".join(f"{before}{k}{between}{v}{after}" for k, v in values.items()) + end


_M3: Final = "]<]minimax[>["
_CALLS: Final = {
    "hermes": f'<tool_call>\n{{"name": "write_file", "arguments": {_ARGUMENTS}}}\n</tool_call>',
    "llama3_json": f'{{"name": "write_file", "parameters": {_ARGUMENTS}}}',
    "mistral": f"[TOOL_CALLS]write_file[ARGS]{_ARGUMENTS}",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0"
    f"<|tool_call_argument_begin|>{_ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write_file<｜tool▁sep｜>"
    f"{_ARGUMENTS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write_file">\n'
    + _parameters(
        '<｜DSML｜parameter name="',
        '" string="true">',
        "</｜DSML｜parameter>\n",
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    "qwen3_coder": "<tool_call>\n<function=write_file>\n"
    + _parameters("<parameter=", ">\n", "\n</parameter>\n", "</function>\n</tool_call>"),
    "phi4_mini": '<|tool_call|>[{"name": "write_file", "arguments": '
    f"{_ARGUMENTS}}}]<|/tool_call|>",
    "function_gemma": "<start_function_call>call:write_file{"
    + _parameters("", ":<escape>", "<escape>,", "}<end_function_call>"),
    "glm": "<tool_call>write_file\n"
    + _parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>"),
    "hy3": "<tool_calls:opensource>\n<tool_call:opensource>write_file<tool_sep:opensource>\n"
    + _parameters(
        "<arg_key:opensource>",
        "</arg_key:opensource>\n<arg_value:opensource>",
        "</arg_value:opensource>\n",
        "</tool_call:opensource>\n</tool_calls:opensource>",
    ),
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="write_file" index="1"<|sep|>'
    + _parameters(
        '<|open|>argument key="',
        '" type="string"<|sep|>',
        "<|close|>argument<|sep|>",
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
    ),
    "minicpm5": '<function name="write_file">'
    + _parameters('<param name="', '"><![CDATA[', "]]></param>", "</function>"),
    "solar_open": "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>write_file"
    f"<|tool_call:args|>{_ARGUMENTS}<|tool_call:end|><|calls|>",
    "gigachat": '<|function_call|>{"name": "write_file", "arguments": '
    f"{_ARGUMENTS}}}<|message_sep|>",
    "gemma4": "<|tool_call>call:write_file{" + _parameters("", ':<|"|>', '<|"|>,', "}<tool_call|>"),
    "harmony": "<|channel|>commentary to=functions.write_file <|constrain|>json<|message|>"
    f"{_ARGUMENTS}<|call|>",
    "minimax_m1": '<tool_calls>\n{"name": "write_file", "arguments": '
    f"{_ARGUMENTS}}}\n</tool_calls>",
    "muse_glimmer": '<atem:function_calls>\n<atem:invoke name="write_file">\n'
    + _parameters(
        '<atem:parameter name="',
        '">',
        "</atem:parameter>\n",
        "</atem:invoke>\n</atem:function_calls>",
    ),
    "minimax_m2": '<minimax:tool_call>\n<invoke name="write_file">\n'
    + _parameters('<parameter name="', '">', "</parameter>\n", "</invoke>\n</minimax:tool_call>"),
    "minimax_m3": f'{_M3}<tool_call>\n{_M3}<invoke name="write_file">'
    f"{_M3}<path>/tmp/a.py{_M3}</path>{_M3}<content>{_CODE}{_M3}</content>"
    f"{_M3}</invoke>\n{_M3}</tool_call>",
    "lfm2": "<|tool_call_start|>[write_file(path='/tmp/a.py', "
    f"content={_CODE!r})]<|tool_call_end|>",
    "apertus": f'<|tools_prefix|>[{{"write_file": {_ARGUMENTS}}}]<|tools_suffix|>',
    "nemotron": f'<TOOLCALL>[{{"name": "write_file", "arguments": {_ARGUMENTS}}}]</TOOLCALL>',
    "cohere": '<|START_ACTION|>[{"tool_name": "write_file", "parameters": '
    f"{_ARGUMENTS}}}]<|END_ACTION|>",
}
ANSWERS: Final = (
    WrittenAnswer("prose", "hermes", _PROSE),
    WrittenAnswer("code", "hermes", _CODE),
    WrittenAnswer("prose", "mistral", _PROSE),
    WrittenAnswer("reasoning", "hermes", f"<think>\n{_PROSE}</think>\n\nYes."),
    *(WrittenAnswer("call", form, text) for form, text in _CALLS.items()),
)
HEAD: Final = AnswerHead("chatcmpl-1", 0, "m")
MAX_US: Final = {"prose": 5.0, "code": 5.0, "reasoning": 5.0, "call": 10.0}


def measure(quick: bool) -> Iterator[MicroFigure]:
    """CPU time of the thread per token, with and without formatting."""
    text = ModelText({path.name: path.read_bytes() for path in FILES.iterdir() if path.is_file()})
    repeats = 1 if quick else 200
    for answer in ANSWERS:
        take_all, num_tokens = _reader(answer, text)
        parsing_us = _cost_us(lambda read=take_all: read(lambda _: None), repeats)
        all_us = _cost_us(
            lambda read=take_all: read(ChunkFormatter(HEAD).format),
            repeats,
        )
        case = f"{answer.kind}, {answer.form}"
        yield MicroFigure(case, "parsing", parsing_us / num_tokens)
        yield MicroFigure(case, "with formatting", all_us / num_tokens, bar=MAX_US[answer.kind])


def _reader(
    answer: WrittenAnswer, text: ModelText
) -> tuple[Callable[[Callable[[TurnEvent], object]], None], int]:
    """A function that reads the whole answer into a sink, and its number of tokens."""
    [ids] = text.encoder.encode_texts([answer.text])
    form = text.answer_format(answer.form)
    items = [TokenItem(bytes(16), 1, at, pack_token(one)) for at, one in enumerate(ids)]

    def take_all(emit: Callable[[TurnEvent], object]) -> None:
        assert form.tools is not None
        pipeline = OutputPipeline(
            text.decoder(form),
            StopMatcher(("\n\nUser:",)),
            ToolParser(form.tools, bytes, _TOOLS),
            reasoning=ReasoningSplitter(form.reasoning, enders=form.enders),
        )
        output = SequenceOutput(pipeline, emit, max_tokens=len(ids), end_ids=frozenset())
        for item in items:
            output.take_item(item)

    return take_all, len(ids)


def _cost_us(work: Callable[[], None], repeats: int) -> float:
    times_s = []
    for _ in range(repeats):
        started_at = time.thread_time()
        work()
        times_s.append(time.thread_time() - started_at)
    return lower_quartile_us(times_s)
