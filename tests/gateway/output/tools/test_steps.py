"""The work of reading an answer, in bytecodes of the gateway: a bound per character, whatever a
model writes, because all other streams wait for it.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import gateway
from tests.gateway.output.tools.test_odd_calls import WRITERS, parser_of

_ROOT: Final = str(Path(gateway.__file__).parent)
MAX_STEPS: Final = 1000
"""Per character; a character that may be part of a tag takes 200 to 800."""


def steps_of(work: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(_ROOT):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def steps_per_char(form: str, text: str) -> float:
    parser = parser_of(form.partition(" ")[0])

    def read() -> None:
        for char in text:
            parser.push(char)
        parser.flush()

    return steps_of(read) / len(text)


def _values(form: str) -> list[str]:
    write, end, outer = WRITERS[form]
    return [f"a{end} ", f"{end}{' ' * 250}x", f"{end}\n{outer}{' ' * 200}y", write("x"), "\n"]


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("form", WRITERS)
def test_a_character_of_a_value_takes_few_steps(form: str, kind: int) -> None:
    """A character of a value takes few steps, in closing tags, white space behind them, and
    calls.
    """
    unit = _values(form)[kind]
    assert steps_per_char(form, WRITERS[form][0](unit * (300 // len(unit) + 1))) < MAX_STEPS


@pytest.mark.parametrize(
    ("form", "start", "unit"),
    [
        ("gemma4", "<|tool_call>call:search{query:", "["),
        ("gemma4", "<|tool_call>call:search{query:", "{a:"),
        ("function_gemma", "<start_function_call>call:search{query:", "["),
        ("lfm2", "<|tool_call_start|>[search(query=", "["),
        ("lfm2", "<|tool_call_start|>[search(query=", "{1: "),
        (
            "minimax_m3",
            ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="search">]<]minimax[>[<query>',
            "]<]minimax[>[<a>",
        ),
    ],
)
def test_a_call_breaks_off_where_its_values_nest_too_deep(form: str, start: str, unit: str) -> None:
    """A call whose values nest too deep breaks off and is not to be run; the answer goes on, and
    ends.
    """
    parser = parser_of(form)
    parser.push(start + unit * 2000)
    parser.flush()
    assert parser.broke_off
