"""DeepSeek V3 to V3.1, and the same with the prefix of V4.

V3: `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, a fenced block of JSON,
`<｜tool▁call▁end｜><｜tool▁calls▁end｜>`. V3.1: `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}`. One
reader takes both. Missing end tags are forgiven.
"""

import re
from typing import Final, NamedTuple

from gateway.output.tools.call_object import read_any_arguments, write_whole
from gateway.output.tools.grammar import (
    MAX_NAME,
    CallSink,
    NotACall,
    Read,
    is_name,
    one_of,
)


class Tags(NamedTuple):
    """The delimiters of a version; `sep` is between a name and its arguments."""

    section: str
    end_section: str
    call: str
    end_call: str
    sep: str


V3: Final = Tags(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
DSML: Final = Tags(
    "<｜DSML｜tool_calls_begin｜>",
    "<｜DSML｜tool_calls_end｜>",
    "<｜DSML｜tool_call_begin｜>",
    "<｜DSML｜tool_call_end｜>",
    "<｜DSML｜tool_sep｜>",
)
_HEAD: Final = re.compile(
    r"\s*+(?:function<[^>]*>)?\s*+([^\s<](?:[^<\n`]*[^\s<`])?)\s*+(?:<[^>]*>)?\s*+(?:```\w*)?\s*+"
    r"(?:null)?\s*+(?:```)?\s*+"
)
_MAX_HEAD: Final = MAX_NAME + 128


def read(calls: CallSink, marker: str, tags: Tags = V3) -> Read[None]:
    """The section behind its opening tag, or behind that of its first call."""
    tag = (yield from _tag(calls, tags)) if marker == tags.section else marker
    while tag != tags.end_section:
        left = ""
        if tag == tags.call:
            name, first = yield from _name(calls, tags)
            if first == ">":
                write_whole(calls, name, "{}", "")
            else:
                left = yield from read_any_arguments(calls, name, first, "<")
        tag = yield from _tag(calls, tags, left)


def _name(calls: CallSink, tags: Tags) -> Read[tuple[str, str]]:
    """The name before the arguments, and how they begin: with `{` or a quote, or `>` if the call
    ends without any. A separator and a fence may follow the name.
    """
    head = ""
    while (char := (yield)) != "{" and not (char == '"' and _is_named(head, tags)):
        head += char
        if char == ">" and head.endswith(tags.end_call):
            break
        if len(head) > _MAX_HEAD:
            raise NotACall
    head = head.removesuffix(tags.end_call)
    match = _HEAD.fullmatch(head)
    if match is None or not (is_name(match[1]) or calls.is_tool(match[1])):
        raise NotACall
    return match[1], char


def _is_named(head: str, tags: Tags) -> bool:
    """Whether the arguments come next. A quote before them belongs to the name."""
    text = head.strip()
    return "```" in text or (text.endswith(tags.sep) and text != "function" + tags.sep)


def _tag(calls: CallSink, tags: Tags, first: str = "") -> Read[str]:
    """The next delimiter, behind white space or the end of a fence."""
    char = first or (yield)
    while char.isspace() or char == "`":
        char = yield
    tag = yield from one_of((tags.call, tags.end_call, tags.end_section), char)
    if tag != tags.call:
        calls.drop()
    return tag
