"""Calls as their templates write them: what a grammar allows is read back letter by letter.

Schemas and values are drawn together: texts hold quotes, lines, unicode and the format's own tags.
"""

import json
import random
import string
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.api import ToolCallArguments, ToolCallStart, schema_source
from gateway.output.tools import TOOL_FORMATS, CallableTool, ToolParser
from tests.gateway.output.tools.test_call_grammars import calls_in, form_of, grammar_of, walker

Arguments = dict[str, Any]


Pieces = list[tuple[str, bool]]
"""Texts, each with whether it is markup: tags in it are tokens, while a model spells those that
stand in values.
"""


class Written(NamedTuple):
    """How a template writes a call of the tool `f`: what is before all arguments, each of them, and
    what is behind them. `closers` end a value if a text holds them.
    """

    head: str
    value: Callable[[str, Any], tuple[str, str]]
    end: str
    tail: str
    closers: tuple[str, ...]

    def call(self, arguments: Arguments) -> Pieces:
        """One call of the tool."""
        pieces = [(self.head, True)]
        for name, one in arguments.items():
            before, text = self.value(name, one)
            is_quoted = before.endswith("<![CDATA[")
            pieces += [(before, True), (text, False), ("]]>" * is_quoted + self.end, True)]
        return [*pieces, (self.tail, True)]


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _hy(name: str, value: object) -> tuple[str, str]:
    key = f"<arg_key:opensource>{name}</arg_key:opensource>\n<arg_value:opensource>"
    return key, _shown(value)


def _glm(name: str, value: object) -> tuple[str, str]:
    return f"<arg_key>{name}</arg_key>\n<arg_value>", _shown(value)


_K3_TYPES: Final = {bool: "boolean", str: "string", list: "array", dict: "object"}


def _k3(name: str, value: object) -> tuple[str, str]:
    kind = "null" if value is None else _K3_TYPES.get(type(value), "number")
    key = name.replace("&", "&amp;").replace('"', "&quot;")
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>', _shown(value)


def _minicpm(name: str, value: object) -> tuple[str, str]:
    text = _shown(value)
    is_long = isinstance(value, str) and any(char in text for char in "<&\n")
    return f'<param name="{name}">{"<![CDATA[" * is_long}', text


_K3_HEAD: Final = (
    '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
)
_K3_TAIL: Final = "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
_QWEN_TAIL: Final = "</function>\n</tool_call>"
WRITTEN: Final = {
    "hy3": Written(
        "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n",
        _hy,
        "</arg_value:opensource>\n",
        "</tool_call:opensource>\n</tool_calls:opensource>",
        ("</arg_value:opensource>",),
    ),
    "kimi_k3": Written(
        _K3_HEAD, _k3, "<|close|>argument<|sep|>", _K3_TAIL, ("<|close|>argument<|sep|>",)
    ),
    "minicpm5": Written(
        '<function name="f">', _minicpm, "</param>", "</function>", ("]]></param>", "]]>", "<![CD")
    ),
    "glm": Written("<tool_call>f\n", _glm, "</arg_value>\n", "</tool_call>", ("</arg_value>",)),
    "qwen3_coder": Written(
        "<tool_call>\n<function=f>\n",
        lambda name, value: (f"<parameter={name}>\n", _shown(value)),
        "\n</parameter>\n",
        "</function>\n</tool_call>",
        ("\n</parameter>\n", "</parameter>\n<parameter=x>", "</parameter></function>"),
    ),
    "qwen3_coder seed": Written(
        "<seed:tool_call>\n<function=f>\n",
        lambda name, value: (f"<parameter={name}>", _shown(value)),
        "</parameter>\n",
        "</function>\n</seed:tool_call>",
        ("</parameter>\n", "</parameter><parameter=x>", "</parameter></function>"),
    ),
}
AS_JSON: Final = {
    "solar_open": (
        "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>f<|tool_call:args|>",
        "<|tool_call:end|><|calls|>",
    ),
    "gigachat": ('<|function_call|>{"name": "f", "arguments": ', "}<|message_sep|>"),
    "hermes": ('<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
}
"""The tags around arguments in JSON, by format."""

NAMES: Final = [*WRITTEN, *AS_JSON]
WORDS: Final = ("city", "a b", 'q"uote', "über", "x-y", "n&m")


def written(name: str, arguments: Arguments) -> Pieces:
    """A call as the template of the format writes it."""
    if name in WRITTEN:
        return WRITTEN[name].call(arguments)
    before, after = AS_JSON[name]
    return [(before, True), (json.dumps(arguments, ensure_ascii=False), False), (after, True)]


def tags_of(name: str) -> tuple[str, ...]:
    """Tags of the format, and what ends its values."""
    tool_format = TOOL_FORMATS[name.partition(" ")[0]]
    return (*tool_format.tags, *(WRITTEN[name].closers if name in WRITTEN else ()))


CHARS: Final = st.sampled_from(
    [*string.ascii_letters, *"0 \"'\\/{}[]<>&|,:\n\t\u00e9\u65e5\U0001f642\u0661"]
)


@cache
def texts(name: str, *, with_tags: bool) -> st.SearchStrategy[str]:
    """Texts, with the format's own tags among other characters."""
    words = st.text(CHARS, min_size=1, max_size=5)
    if not with_tags:
        return st.lists(words, max_size=3).map("".join)
    tags = st.sampled_from(tags_of(name))
    return st.lists(words | tags, min_size=1, max_size=4).map("".join) | st.just("")


Pair = tuple[dict[str, Any], Any]


@st.composite
def leaves(draw: st.DrawFn, name: str, *, with_tags: bool) -> Pair:
    """A schema of one value, and a value of it."""
    text = draw(texts(name, with_tags=with_tags))
    number, word, choices = draw(st.integers(-1000, 10**9)), f"{text}.", [f"a{text}", "b"]
    # Where nothing tells a text from a number, a value that may be a text is one.
    three = [3] if name == "kimi_k3" or name in AS_JSON else []
    pairs: list[Pair] = [
        ({"type": "string"}, text),
        ({"type": "string"}, text),
        ({"type": "string", "minLength": 1}, word),
        ({"type": "string", "pattern": r"^[^\u0000]*\.$"}, word),
        ({"type": "string", "enum": choices}, draw(st.sampled_from(choices))),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, draw(st.sampled_from([None, word]))),
        ({"enum": ["x", text or "y", 3, None]}, draw(st.sampled_from(["x", None, *three]))),
        ({"type": "integer", "minimum": -1000}, number),
        ({"type": "number"}, draw(st.sampled_from([0.5, -3, 1e-7, 2]))),
        ({"type": "boolean"}, draw(st.booleans())),
        ({"type": ["integer", "null"]}, draw(st.sampled_from([None, 7]))),
    ]
    return draw(st.sampled_from(pairs))


@st.composite
def values(draw: st.DrawFn, name: str, depth: int = 2) -> Pair:
    """Values nested in objects and lists. What is nested is JSON, in which a tag of the format
    would be one.
    """
    kind = draw(st.sampled_from((4, 4, 4, 0, 1, 2, 3))) if depth else 4
    if kind == 0:
        properties, arguments = draw(objects(name, depth - 1, with_tags=False))
        return properties, arguments
    if kind == 1:
        schema, value = draw(leaves(name, with_tags=False))
        return {"type": "array", "items": schema, "maxItems": 3}, [value] * draw(st.integers(0, 3))
    if kind == 2:
        schema, value = draw(leaves(name, with_tags=False))
        keys = draw(st.lists(st.sampled_from(WORDS), unique=True, max_size=2))
        return {"type": "object", "additionalProperties": schema}, dict.fromkeys(keys, value)
    if kind == 3:
        return {"$ref": "#/$defs/place"}, draw(st.sampled_from([{"x": 1}, {"x": -2, "y": "a\nb"}]))
    return draw(leaves(name, with_tags=depth == 2))


PLACE: Final = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}


@st.composite
def objects(draw: st.DrawFn, name: str, depth: int = 2, *, with_tags: bool = True) -> Pair:
    """A closed object with some of its properties."""
    keys = draw(st.lists(st.sampled_from(WORDS), unique=True, min_size=1, max_size=4))
    pairs = {key: draw(values(name, depth if with_tags else max(depth - 1, 0))) for key in keys}
    given_keys = [key for key in keys if draw(st.booleans())]
    required = [key for key in given_keys if draw(st.booleans())]
    schema = {
        "type": "object",
        "properties": {key: pair[0] for key, pair in pairs.items()},
        "required": required,
        "additionalProperties": False,
    }
    return schema, {key: pairs[key][1] for key in given_keys}


@st.composite
def calls(draw: st.DrawFn, name: str) -> tuple[dict[str, Any], Arguments]:
    """The parameters of a tool, and arguments of a call."""
    schema, arguments = draw(objects(name))
    return {**schema, "$defs": {"place": PLACE}}, arguments


def grammar(name: str, schema: dict[str, Any]) -> str:
    """The grammar of an answer that is a call of `f`."""
    source = schema_source(schema, "f", is_strict=False, is_lenient=True)
    return grammar_of(name).forced([CallableTool("f", source.text)], "")


def tools_of(schema: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return ({"type": "function", "function": {"name": "f", "parameters": schema}},)


def holds_tags(name: str, arguments: Arguments) -> bool:
    """Whether a text holds what could be taken for a tag."""
    marks = ("<", "]]>", "|>")
    return any(
        isinstance(one, str) and any(mark in one for mark in marks) for one in arguments.values()
    )


MANY: Final = settings(max_examples=max(50, settings.default.max_examples))


@pytest.mark.parametrize("name", NAMES)
def test_what_the_grammar_allows_is_read_back(name: str) -> None:
    """Equal arguments, in one call and without text; without tags in texts it is always allowed."""

    @MANY
    @given(calls(name), st.randoms(use_true_random=False))
    def check(call: tuple[dict[str, Any], Arguments], rng: random.Random) -> None:
        schema, arguments = call
        pieces = written(name, arguments)
        text = "".join(piece for piece, _ in pieces)
        is_allowed = walker(name).accepts_pieces(grammar(name, schema), pieces)
        assert is_allowed or holds_tags(name, arguments), text
        if is_allowed:
            found, said = calls_in(name, text, tools_of(schema))
            assert found == [("f", arguments)], text
            assert not said
            assert in_pieces(name, text, schema, rng) == found

    check()


def in_pieces(
    name: str, text: str, schema: dict[str, Any], rng: random.Random
) -> list[tuple[str, Any]]:
    """The calls of an answer that comes in pieces of any size."""
    tools = tools_of(schema)
    form = form_of(name)
    assert form.tools is not None
    splitter = form.splitter(tools, is_open=False, is_past=False)
    parser = ToolParser(form.tools, rng.randbytes, tools)
    events, at = [], 0
    while at < len(text):
        size = rng.choice((1, 1, 2, 3, 7, 40))
        events += parser.push(splitter.push(text[at : at + size]).answer)
        at += size
    events += [*parser.push(splitter.flush().answer), *parser.flush()]
    found: list[list[str]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            found.append([event.name, ""])
        elif isinstance(event, ToolCallArguments):
            found[-1][1] += event.text
    return [(called, json.loads(arguments)) for called, arguments in found]


@pytest.mark.parametrize("name", NAMES)
def test_one_other_character_is_no_other_call(name: str) -> None:
    """A call with one other character is refused, or is another valid call: never text, or a call
    that breaks off.
    """

    @MANY
    @given(calls(name), st.floats(0, 1, exclude_max=True), CHARS)
    def check(call: tuple[dict[str, Any], Arguments], place: float, char: str) -> None:
        schema, arguments = call
        pieces = written(name, arguments)
        at = int(place * sum(len(piece) for piece, _ in pieces))
        changed = with_other(pieces, at, char)
        assume(changed != pieces)
        if walker(name).accepts_pieces(grammar(name, schema), changed):
            broken = "".join(piece for piece, _ in changed)
            found, said = calls_in(name, broken, tools_of(schema))
            assert not said, broken
            assert [one for one, _ in found] == ["f"], broken
            jsonschema.validate(found[0][1], schema)

    check()


def with_other(pieces: Pieces, at: int, char: str) -> Pieces:
    """The pieces with another character at the place `at` of all their text."""
    found: Pieces = []
    for piece, is_markup in pieces:
        if 0 <= at < len(piece):
            found.append((piece[:at] + char + piece[at + 1 :], is_markup))
        else:
            found.append((piece, is_markup))
        at -= len(piece)
    return found
