"""Calls that models write a little wrong, and values that look like the end of a call."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.events import TextDelta, ToolCallStart
from gateway.output.tools import TOOL_FORMATS, ToolParser
from tests.gateway.output.tools.test_answers import joined


def tool(name: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = (
    tool("write", ("path", "content"), path={"type": "string"}, content={"type": "string"}),
    tool(
        "log_event",
        day={"type": "integer"},
        maybe={"type": ["integer", "null"]},
        word={"type": ["string", "null"]},
        note={"type": "string"},
        map={"type": "object"},
    ),
    tool("must", ("day",), day={"type": "integer"}),
    tool("search", query={"type": "string"}),
    tool("exec", command={"type": "string"}),
    tool("get weather", city={"type": "string"}),
    tool('say "hi"', city={"type": "string"}),
)


def parser_of(form: str, **options: Any) -> ToolParser:
    return ToolParser(TOOL_FORMATS[form], bytes, TOOLS, **options)


def read(form: str, text: str) -> tuple[list[Any], bool]:
    """Text and calls, and whether the last call broke off; the same however the text is cut."""
    found: list[tuple[list[Any], bool]] = []
    for cut in range(len(text) + 1):
        parser = parser_of(form)
        events = [*parser.push(text[:cut]), *parser.push(text[cut:]), *parser.flush()]
        found.append((joined(events, unique_ids=False), parser.broke_off))
    assert all(one == found[0] for one in found)
    return found[0]


def called(form: str, text: str) -> list[Any]:
    """The calls of an answer that is nothing else, with their arguments decoded."""
    seen, is_broken = read(form, text)
    assert not is_broken
    return [(name, json.loads(arguments)) for name, arguments in seen]


def qwen(value: str) -> str:
    return (
        "<tool_call>\n<function=write>\n<parameter=path>\na.xml\n</parameter>\n"
        f"<parameter=content>\n{value}\n</parameter>\n</function>\n</tool_call>"
    )


def seed(value: str) -> str:
    return qwen("\0").replace("tool_call>", "seed:tool_call>").replace("\0", value)


def bare(value: str) -> str:
    return qwen(value).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")


def glm(value: str) -> str:
    return (
        "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>a.xml</arg_value>\n"
        f"<arg_key>content</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"
    )


def dsml(value: str) -> str:
    d = "｜DSML｜"
    return (
        f'<{d}tool_calls>\n<{d}invoke name="write">\n'
        f'<{d}parameter name="path" string="true">a.xml</{d}parameter>\n'
        f'<{d}parameter name="content" string="true">{value}</{d}parameter>\n'
        f"</{d}invoke>\n</{d}tool_calls>"
    )


def minimax(value: str) -> str:
    return (
        '<minimax:tool_call>\n<invoke name="write">\n<parameter name="path">a.xml</parameter>\n'
        f'<parameter name="content">{value}</parameter>\n</invoke>\n</minimax:tool_call>'
    )


WRITERS = {
    "qwen3_coder": (qwen, "</parameter>", "</function>"),
    "qwen3_coder seed": (seed, "</parameter>", "</function>"),
    "qwen3_coder bare": (bare, "</parameter>", ""),
    "glm": (glm, "</arg_value>", ""),
    "deepseek_v4": (dsml, "</｜DSML｜parameter>", "</｜DSML｜invoke>"),
    "minimax_m2": (minimax, "</parameter>", "</invoke>"),
}


@pytest.mark.parametrize("form", WRITERS)
def test_a_value_may_hold_its_own_closing_tag(form: str) -> None:
    """A file with such tags is whole: only what may follow in the format ends the value."""
    write, end, outer = WRITERS[form]
    values = [
        f"<a>\n  <parameter>a{end}\n</a>",
        f"one {end}",
        f"{end}{end}",
        f"{end} <",
        f"x {end}\n\n</param",
        "<parameter=x> </b>",
    ]
    if outer:
        values += [f"{end}\n{outer}\nmore", f"a\n{outer}\nb"]
    for value in values:
        expected = [("write", {"path": "a.xml", "content": value})]
        assert called(form.partition(" ")[0], write(value)) == expected


@pytest.mark.parametrize("form", [form for form in WRITERS if form != "qwen3_coder bare"])
def test_a_value_may_hold_a_whole_call(form: str) -> None:
    """A value may hold a whole call, as an example in a file, at any place of it, and one in
    another; and one that never ends.
    """
    write, *_ = WRITERS[form]
    one = write("x")
    values = (f"see\n{one}\nend", one, f"{one} and {one}.", write(f"a {one} b"))
    for value in (*values, one[: one.index("<", 20) + 12]):
        text = write(value)
        expected = [("write", {"path": "a.xml", "content": value})]
        parser = parser_of(form.partition(" ")[0])
        found = joined([*[e for char in text for e in parser.push(char)], *parser.flush()])
        assert [(name, json.loads(arguments)) for name, arguments in found] == expected
        assert not parser.broke_off


def test_an_example_that_never_ends_before_another_parameter_is_not_run() -> None:
    """A value with an example whose tag never ends, before another parameter, is not run: the next
    tag may be the example's or the call's.
    """
    text = qwen("x").replace("a.xml", "<tool_call>\n<function=f>\n<parameter=a>\n1")
    _, is_broken = read("qwen3_coder", text)
    assert is_broken
    begun = qwen("<tool_call>\n<function=")
    assert called("qwen3_coder", begun)[0][1]["content"] == "<tool_call>\n<function="
    one = "<tool_call><function=log_event><parameter=day>1</parameter></function></tool_call>"
    _, is_broken = read("qwen3_coder", f"{begun}\n{one}")
    assert is_broken


@pytest.mark.parametrize("form", WRITERS)
def test_a_call_whose_end_cannot_be_told_is_not_run(form: str) -> None:
    """The closing tag stands there, but what follows is no part of a call."""
    write, end, _ = WRITERS[form]
    text = write("value")
    seen, is_broken = read(
        form.partition(" ")[0], text[: text.rindex(end) + len(end)] + " and so on"
    )
    assert is_broken
    assert seen[-1][0] == "write"
    seen, is_broken = read(form.partition(" ")[0], text[: text.rindex(end) + len(end)] + "\n")
    assert not is_broken, "the model ended its answer behind the closing tag"


@given(
    st.sampled_from(sorted(WRITERS)),
    st.lists(
        st.sampled_from(
            ["</parameter>", "</arg_value>", "</｜DSML｜parameter>", "\n", " ", "<", "a", "</", "é"]
        ),
        max_size=8,
    ).map("".join),
)
def test_any_value_of_tags_comes_whole(form: str, value: str) -> None:
    """A value with any closing tags comes whole, up to the line breaks beside its own tags."""
    write, *_ = WRITERS[form]
    parser = parser_of(form.partition(" ")[0])
    events = [event for char in write(value) for event in parser.push(char)]
    ((name, arguments),) = joined(events + parser.flush())
    assert (name, json.loads(arguments)) == ("write", {"path": "a.xml", "content": value})


def event(inner: str, name: str = "log_event") -> str:
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        ("<parameter=day></parameter>\n", {}),
        ("<parameter=day>\n\n</parameter>\n", {}),
        ("<parameter=day>None</parameter>\n", {}),
        ("<parameter=day>null</parameter>\n", {}),
        ("<parameter=day>\nNone\n</parameter>\n<parameter=note>a</parameter>", {"note": "a"}),
        ("<parameter=maybe>None</parameter>\n", {"maybe": None}),
        ("<parameter=maybe></parameter>\n", {}),
        ("<parameter=word>None</parameter>\n", {"word": None}),
        ("<parameter=map></parameter>\n", {}),
        ("<parameter=note></parameter>\n", {"note": ""}),
        ("<parameter=note>None</parameter>\n", {"note": "None"}),
        ("<parameter=day>Nonesuch</parameter>\n", {"day": "Nonesuch"}),
        ("<parameter=day\n>3</parameter>\n", {"day": ">3"}),
        ("<parameter=day\n3\n</parameter>\n", {"day": 3}),
        ('<parameter="day">3</parameter>\n', {"day": 3}),
        ("<parameter=day>\n3\n<parameter=note>\na\n</parameter>\n", {"day": 3, "note": "a"}),
        ('{"day": 3, "note": "x"}', {"day": 3, "note": "x"}),
        ("", {}),
    ],
)
def test_odd_parameters_have_their_sense(inner: str, arguments: dict[str, Any]) -> None:
    """What says nothing is left out, or null where that is allowed (sglang#36835); a name without
    its bracket ends at the line (vllm#25028); JSON in place of parameters is read.
    """
    assert called("qwen3_coder", event(inner)) == [("log_event", arguments)]


def test_a_required_parameter_is_not_left_out() -> None:
    """The tool's own check is to find it, not a missing key."""
    assert called("qwen3_coder", event("<parameter=day></parameter>", "must")) == [
        ("must", {"day": ""})
    ]


def test_functionary_writes_json_in_its_tags() -> None:
    """functionary writes JSON in its tags behind the name, without outer tags, several in a row."""
    text = '<function=log_event>{"day": 3, "note": "x"}</function>'
    one = ("log_event", {"day": 3, "note": "x"})
    assert called("qwen3_coder", text) == [one]
    assert called("qwen3_coder", text + text) == [one, one]
    seen, _ = read("qwen3_coder", f"{text} done")
    assert seen[1:] == ["done"]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>search<arg_key>query</arg_key>how many days</arg_value></tool_call>",
        "<tool_call>search\n<arg_key>query</arg_key>\nhow many days</arg_value>\n</tool_call>",
        "<tool_call>search<arg_key>query<arg_value>how many days</arg_value></tool_call>",
    ],
)
def test_a_missing_tag_before_a_value_is_forgiven(text: str) -> None:
    """A missing tag before a value is added in GLM's calls (vllm#49248, vllm#51364)."""
    assert called("glm", text) == [("search", {"query": "how many days"})]


def test_a_value_without_its_tag_may_begin_like_one() -> None:
    """The first characters are not lost."""
    text = "<tool_call>search<arg_key>query</arg_key><b>x</b></arg_value></tool_call>"
    assert called("glm", text) == [("search", {"query": "<b>x</b>"})]


def kimi(call_id: str) -> str:
    return (
        f"<|tool_calls_section_begin|><|tool_call_begin|>{call_id}<|tool_call_argument_begin|>"
        '{"command": "ls"}<|tool_call_end|><|tool_calls_section_end|>'
    )


@pytest.mark.parametrize(
    "call_id",
    [
        "functionsexec5", "functions.exec5", "functions.exec:5", "exec:5", "exec5", "exec",
        "functions.exec", "functions:exec:5", " functions.exec:0\n", "functions.exec_5",
    ],
)  # fmt: skip
def test_a_broken_id_names_the_tool(call_id: str) -> None:
    """A broken id, as Kimi K2 writes them (sglang#21377), names the tool."""
    assert called("kimi_k2", kimi(call_id)) == [("exec", {"command": "ls"})]


def test_numbers_of_calls_go_on_over_turns() -> None:
    """The model counts anew in every turn; ids of a conversation are unique all the same."""

    def ids(text: str, *past: str) -> list[str]:
        parser = parser_of("kimi_k2", past_ids=past)
        events = [*parser.push(text), *parser.flush()]
        return [one.id for one in events if isinstance(one, ToolCallStart)]

    assert ids(kimi("functions.exec:0")) == ["functions.exec:0"]
    assert ids(kimi("functions.exec:0"), "functions.exec:0") == ["functions.exec:1"]
    assert ids(kimi("functions.exec:1"), "functions.exec:0") == ["functions.exec:1"]
    assert ids(kimi("functionsexec5"), "functions.exec:0") == ["functions.exec:1"]
    assert ids(kimi("functions.exec:0"), "functions.exec:0", "functions.exec:2") == [
        "functions.exec:3"
    ]


SPOKEN = {
    "hermes": '<tool_call>\n{{"name": {quoted}, "arguments": {{"city": "Bern"}}}}\n</tool_call>',
    "llama3_json": '{{"name": {quoted}, "parameters": {{"city": "Bern"}}}}',
    "mistral": '[TOOL_CALLS][{{"name": {quoted}, "arguments": {{"city": "Bern"}}}}]',
    "phi4_mini": '<|tool_call|>[{{"name": {quoted}, "arguments": {{"city": "Bern"}}}}]',
    "qwen3_coder": "<function={name}><parameter=city>Bern</parameter></function>",
    "glm": "<tool_call>{name}<arg_key>city</arg_key><arg_value>Bern</arg_value></tool_call>",
    "kimi_k2": "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
    '{{"city": "Bern"}}<|tool_call_end|>',
    "deepseek_v3": '<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{{"city": "Bern"}}<｜tool▁call▁end｜>',
    "function_gemma": "<start_function_call>call:{name}{{city:<escape>Bern<escape>}}",
}


@pytest.mark.parametrize("form", SPOKEN)
@pytest.mark.parametrize("name", ["get weather", 'say "hi"'])
def test_a_tool_of_the_request_may_have_any_name(form: str, name: str) -> None:
    """A tool of the request may have any name, also with a space or a quote; such a name that the
    request does not have is text.
    """
    text = SPOKEN[form].format(name=name, quoted=json.dumps(name))
    assert called(form, text) == [(name, {"city": "Bern"})]
    other = SPOKEN[form].format(name="no such", quoted='"no such"')
    parser = parser_of(form)
    events = [*parser.push(other), *parser.flush()]
    assert all(isinstance(one, TextDelta) for one in events)


@pytest.mark.parametrize("value", ["a\nb\n", "\n", "", "a\n\n", " a "])
def test_line_breaks_of_seed_oss_are_the_value_s(value: str) -> None:
    """Seed-OSS writes its tags right beside the value, so line breaks are the value's: a file keeps
    its last one.
    """
    text = (
        "<seed:tool_call>\n<function=write>\n<parameter=path>a</parameter>\n"
        f"<parameter=content>x{value}</parameter>\n</function>\n</seed:tool_call>"
    )
    assert called("qwen3_coder", text) == [("write", {"path": "a", "content": f"x{value}"})]


@pytest.mark.parametrize(
    ("form", "start", "escape", "end"),
    [
        ("function_gemma", "<start_function_call>", "<escape>", "<end_function_call>"),
        ("gemma4", "<|tool_call>", '<|"|>', "<tool_call|>"),
    ],
)
def test_text_of_gemma_may_hold_its_own_quotes(
    form: str, start: str, escape: str, end: str
) -> None:
    """A quote ends a text only where the call can go on behind it."""
    for value in (f"a {escape} b", f"{escape}", f"a\n{escape}{escape}\nb", f"{end} {escape}x"):
        text = f"{start}call:write{{path:{escape}{value}{escape},content:{escape}c{escape}}}{end}"
        assert called(form, text) == [("write", {"path": value, "content": "c"})]
        nested = f"{start}call:log_event{{map:{{k:[{escape}{value}{escape}]}}}}{end}"
        assert called(form, nested) == [("log_event", {"map": {"k": [value]}})]


HALF = {
    "hermes": '<tool_call>{"name": "log_event", "arguments": {"day": 3, ',
    "hermes open": '<tool_call>{"name": "log_event", "arguments": {',
    "hermes nested": '<tool_call>{"name": "log_event", "arguments": {"map": {"a": [1, ',
    "mistral": '[TOOL_CALLS]log_event[ARGS]{"day": 3,',
    "qwen3_coder": "<tool_call><function=log_event><parameter=day>3</parameter><parameter=no",
    "qwen3_coder tag": "<tool_call><function=log_event><parameter=day>3</parameter>\n<par",
    "qwen3_coder first": "<tool_call><function=log_event><parameter=da",
    "glm": "<tool_call>log_event<arg_key>day</arg_key><arg_value>3</arg_value><arg_key>no",
    "glm tag": "<tool_call>log_event<arg_key>day</arg_key><arg_value>3</arg_value><arg",
    "glm value": "<tool_call>log_event<arg_key>day</arg_key>",
    "deepseek_v4": '<｜DSML｜tool_calls><｜DSML｜invoke name="log_event">'
    '<｜DSML｜parameter name="da',
    "minimax_m2": '<minimax:tool_call><invoke name="log_event"><parameter name="day"',
    "minimax_m3": ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="log_event">'
    "]<]minimax[>[<day>3]<]minimax[>[</day>]<]minimax[>[<no",
    "gemma4": "<|tool_call>call:log_event{day:3,",
    "gemma4 open": "<|tool_call>call:log_event{",
    "lfm2": "<|tool_call_start|>[log_event(day=3,",
}


@pytest.mark.parametrize("case", HALF)
def test_a_call_that_ends_before_its_next_parameter_is_not_run(case: str) -> None:
    """The answer ends, and a value is certainly missing."""
    seen, is_broken = read(case.partition(" ")[0], HALF[case])
    assert [name for name, _ in seen] == ["log_event"]
    assert is_broken


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>{"name": "search", "arguments": ""}</tool_call>'),
        ("minimax_m1", '<tool_calls>{"name": "search", "arguments": " "}</tool_calls>'),
        (
            "kimi_k2",
            "<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|><|tool_call_end|>",
        ),
        (
            "deepseek_v3",
            "<｜tool▁call▁begin｜>search<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
    ],
)
def test_a_call_whose_arguments_are_empty_has_none(form: str, text: str) -> None:
    """Models leave out the `{}` of tools without parameters; the markup became text."""
    assert called(form, text) == [("search", {})]


def test_a_call_without_arguments_is_one_among_others() -> None:
    """The text and calls after it are read as usual."""
    tags = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
    calls = tags.format("search", 0, " ") + tags.format("exec", 1, '{"command": "ls"}')
    section = f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"
    assert called("kimi_k2", section) == [("search", {}), ("exec", {"command": "ls"})]


def test_calls_in_a_list_between_hermes_tags_are_calls() -> None:
    """Calls in a list between Hermes tags are calls, as other formats write them."""
    text = (
        '<tool_call>\n[{"name": "search", "arguments": {"query": "x"}},\n'
        '{"name": "exec", "arguments": {"command": "ls"}}]\n</tool_call>'
    )
    assert called("hermes", text) == [("search", {"query": "x"}), ("exec", {"command": "ls"})]
    assert read("hermes", "<tool_call>[1, 2]</tool_call>") == (
        ["<tool_call>[1, 2]</tool_call>"],
        False,
    )


SEARCH = ("search", {"query": "a, (b) ]"})
EXEC = ("exec", {"command": "ls"})
NO_ARGUMENTS = ("search", {})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[search(query='a, (b) ]')]", [SEARCH]),
        ('[search(query="a, (b) ]"), exec(command="ls")]', [SEARCH, EXEC]),
        ("\n[exec(command='ls')]\n", [EXEC]),
        ("<|python_start|>[exec(command='ls')]<|python_end|>", [EXEC]),
        ('<|python_start|>{"name": "exec", "parameters": {"command": "ls"}}<|python_end|>', [EXEC]),
        ("<|python_tag|>[search()]", [NO_ARGUMENTS]),
        ("[exec(command='ls')]; [search()]", [EXEC, NO_ARGUMENTS]),
        ('{"name": "search", "parameters": {}}; [exec(command="ls")]', [NO_ARGUMENTS, EXEC]),
    ],
)
def test_llama_4_writes_calls_as_python(text: str, calls: list[Any]) -> None:
    """Llama 4's own template asks for calls as Python; small models of Llama 3.2 write them too."""
    assert called("llama3_json", text) == calls


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2, 3]",
        "[]",
        '["a", "b"]',
        "[search]",
        "[search](http://x)",
        "[unknown(x=1)]",
        "- [ ] search",
        "Do this: [exec(command='ls')]",
        "<|python_start|>print(1)<|python_end|>",
        "[search(for x in y)]",
    ],
)
def test_a_list_that_is_no_call_is_llamas_text(text: str) -> None:
    """An answer may begin with a bracket for other reasons."""
    assert read("llama3_json", text) == ([text], False)


LOG = ("log_event", {"day": 3, "note": "x"})
ODD_OBJECTS = {
    "in a function": '{"type": "function", "function": {"name": "log_event", "arguments": ARGS}}',
    "in a function, as a text": (
        '{"id": "a", "function": {"name": "log_event", "arguments": TEXT}, "index": 0}'
    ),
    "in a function, the name last": (
        '{"function": {"arguments": ARGS, "name": "log_event"}, "type": "function"}'
    ),
    "a function for a name": '{"type": "function", "function": "log_event", "parameters": ARGS}',
    "args": '{"name": "log_event", "args": ARGS}',
    "input": '{"name": "log_event", "input": ARGS, "id": "a"}',
    "params, the name last": '{"params": ARGS, "name": "log_event"}',
    "a text before the name": '{"arguments": TEXT, "name": "log_event"}',
    "a namespace": '{"name": "functions.log_event", "arguments": ARGS}',
    "another namespace": '{"name": "tools.log_event", "arguments": ARGS}',
}
AROUND = {
    "hermes": "<tool_call>\n{}\n</tool_call>",
    "qwen3_coder": "<tool_call>\n{}\n</tool_call>",
    "llama3_json": "{}",
    "mistral": "[TOOL_CALLS][{}]",
    "phi4_mini": "<|tool_call|>[{}]<|/tool_call|>",
    "nemotron": "<TOOLCALL>[{}]</TOOLCALL>",
    "cohere": "<|START_ACTION|>[{}]<|END_ACTION|>",
    "lfm2": "<|tool_call_start|>[{}]<|tool_call_end|>",
    "minimax_m1": "<tool_calls>\n{}\n</tool_calls>",
}


@pytest.mark.parametrize("written", ODD_OBJECTS.values(), ids=list(ODD_OBJECTS))
@pytest.mark.parametrize("form", AROUND)
def test_calls_as_apis_and_other_models_write_them(form: str, written: str) -> None:
    """Where an object is a call, its name and arguments may stand as in other places."""
    arguments = json.dumps(LOG[1])
    given = written.replace("ARGS", arguments).replace("TEXT", json.dumps(arguments))
    around = AROUND[form]
    assert called(form, around.replace("{}", given)) == [LOG]


@pytest.mark.parametrize("form", [form for form in AROUND if form != "llama3_json"])
def test_arguments_beside_the_name_are_not_lost(form: str) -> None:
    """The call ran without any. Fields that the tool does not know are none of them."""
    odd = '{"name": "log_event", "day": 3, "id": 7, "note": "x", "why": [1], "map": {"a": null}}'
    expected = ("log_event", {**LOG[1], "map": {"a": None}})
    assert called(form, AROUND[form].replace("{}", odd)) == [expected]


@pytest.mark.parametrize(
    "odd",
    [
        '{"function": {"function": {"name": "search", "arguments": {}}}}',
        '{"function": "unknown", "arguments": {}}',
        '{"arguments": [1], "name": "search"}',
        '{"arguments": "no", "name": "search"}',
        '{"function": {}}',
    ],
)
def test_other_objects_are_no_calls(odd: str) -> None:
    """Nothing tells what they would call, or with what."""
    text = f"<tool_call>{odd}</tool_call>"
    assert read("hermes", text) == ([text], False)


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}\n```", "```json\n{}\n{}\n```"])
def test_a_fence_within_the_tags_is_no_part_of_the_calls(fence: str) -> None:
    """What follows them is text as ever."""
    one = '{"name": "search", "arguments": {"query": "```"}}'
    text = f"<tool_call>\n{fence.replace('{}', one)}\n</tool_call>\nok"
    seen, is_broken = read("hermes", text)
    assert not is_broken
    calls = [("search", '{"query": "```"}')] * fence.count("{}")
    assert seen == [*calls, "ok"]


@pytest.mark.parametrize("opening", ["```\n", "```xml\n", "`", "Call it so:\n\n```json\n"])
@pytest.mark.parametrize(
    ("form", "call"),
    [
        ("hermes", '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'),
        ("qwen3_coder", qwen("x").replace("write", "search")),
    ],
)
def test_a_call_within_a_fence_is_a_call(form: str, call: str, opening: str) -> None:
    """Models put real ones there; the fence stays as text (decision 0069)."""
    closing = "`" if opening == "`" else "\n```"
    before, *calls, after = read(form, f"{opening}{call}{closing}\nDone.")[0]
    assert before == opening.rstrip()
    assert [name for name, _ in calls] == ["search"]
    assert after == f"{closing.lstrip()}\nDone."


@pytest.mark.parametrize("mark", ["'''", '"""'])
@pytest.mark.parametrize("form", ["lfm2", "llama3_json"])
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("a\nb", "a\nb"),
        ("", ""),
        ("say 'a', \"b\")", "say 'a', \"b\")"),
        (r"tab\t \\ \"", 'tab\t \\ "'),
        (r"\'\'\', \"\"\")", "''', \"\"\")"),
    ],
)
def test_texts_between_three_quotes_are_what_is_between(
    form: str, mark: str, written: str, value: str
) -> None:
    """Only what stands between three quotes is the text: the marks became a part of it."""
    text = f"[write(path='a', content={mark}{written}{mark}), search(query={mark}x{mark} )]"
    if form == "lfm2":
        text = f"<|tool_call_start|>{text}<|tool_call_end|>"
    expected = [("write", {"path": "a", "content": value}), ("search", {"query": "x"})]
    assert called(form, text) == expected


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("qwen3_coder", "<function=functions.{}>\n<parameter=day>\n3\n</parameter>\n</function>"),
        ("glm", "<tool_call>tools.{}<arg_key>day</arg_key><arg_value>3</arg_value></tool_call>"),
        ("mistral", '[TOOL_CALLS]functions.{}[ARGS]{"day": 3}'),
        ("lfm2", "<|tool_call_start|>[functions.{}(day=3)]<|tool_call_end|>"),
        ("gemma4", "<|tool_call>call:functions.{}{day:3}<tool_call|>"),
    ],
)
def test_a_namespace_before_a_tool_is_none_of_its_name(form: str, text: str) -> None:
    """A namespace before a tool is no part of its name, also in formats of their own, where the
    values have the types of its parameters.
    """
    assert called(form, text.replace("{}", "log_event", 1)) == [("log_event", {"day": 3})]
