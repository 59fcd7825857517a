"""What models write when they call tools, and what a client is to see of it.

Per format: well-formed, parallel, text around, nested quotes and braces, line breaks and other
scripts in values, forgotten ends, and what is no call at all.
"""

from dataclasses import dataclass
from typing import Any, Final

from tests.fakes.tagged_answers import tagged_answers

TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {
                "count": {"type": "integer"},
                "ratio": {"type": "number"},
                "text": {"type": "string"},
                "flag": {"type": "boolean"},
                "map": {"type": "object"},
                "list": {"type": "array", "items": {"type": "integer"}},
                "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
        },
    },
}
OTHER: Final[dict[str, Any]] = {"type": "function", "function": {"name": "g"}}
TOOLS: Final = (TOOL, OTHER)

Call = tuple[str, str]


@dataclass(frozen=True)
class Answer:
    """One answer: `seen` is text and (name, arguments) in order."""

    form: str
    text: str
    seen: tuple[str | Call, ...]


def _json(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


NESTED: Final = (
    r'{"text": "if (a) { print(\"</tool_call>}\") } \\ \u00e9 日本 🙂", "map": {"x": [{}, "]"]}}'
)
LINES: Final = 'first "line"\n\tsecond <b>\n\n{third} 日本 🙂 \\n'
LINES_JSON: Final = r'"first \"line\"\n\tsecond <b>\n\n{third} 日本 🙂 \\n"'


def _hermes() -> list[Answer]:
    def call(arguments: str, name: str = "f") -> str:
        return f"<tool_call>\n{_json(name, arguments)}\n</tool_call>"

    def plain(text: str) -> Answer:
        return Answer("hermes", text, (text,))

    one = call('{"count": 1}')
    seen = ("f", '{"count": 1}')
    return [
        Answer("hermes", one, (seen,)),
        Answer("hermes", f"Let me see.\n\n{one}\n", ("Let me see.", seen)),
        Answer("hermes", f"{one}\n{call('{}', 'g')} and more", (seen, ("g", "{}"), "and more")),
        Answer("hermes", call(NESTED), (("f", NESTED),)),
        Answer("hermes", call('{"text": "a\nb\tc"}'), (("f", r'{"text": "a\nb\tc"}'),)),
        Answer("hermes", call("{}", "mcp.files/日本"), (("mcp.files/日本", "{}"),)),
        Answer("hermes", one.removesuffix("\n</tool_call>"), (seen,)),
        Answer("hermes", one.removesuffix("}\n</tool_call>"), (seen,)),
        Answer("hermes", one.replace("}}", "}"), (seen,)),
        Answer("hermes", one.replace("}}", "}}}"), (seen,)),
        Answer("hermes", one[:-3], (seen,)),
        Answer("hermes", '<tool_call>{"name": "f", "arguments": {"text": "ab', _cut("ab")),
        Answer("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', (("f", "{}"),)),
        Answer("hermes", '<tool_call>{"name": "f"}</tool_call> x', (("f", "{}"), "x")),
        Answer(
            "hermes", call(r'"{\"text\": \"a\\nb \\u00e9\"}"'), (("f", r'{"text": "a\nb \u00e9"}'),)
        ),
        Answer(
            "hermes",
            '<tool_call>{"id": 7, "arguments": {"map": {}}, "name": "f"}</tool_call>',
            (("f", '{"map": {}}'),),
        ),
        Answer(
            "hermes",
            call('{"text": "say "hi" now", \'flag\': True, "maybe": None,}'),
            (("f", '{"text": "say \\"hi\\" now", "flag": true, "maybe": null}'),),
        ),
        Answer(
            "hermes",
            f'<tool_call>{{"name": "f</tool_call>\n{one}',
            ('<tool_call>{"name": "f</tool_call>', seen),
        ),
        Answer("hermes", f"<tool_call>{one}", ("<tool_call>", seen)),
        Answer(
            "hermes",
            r'<tool_call>{"id": "x", "why": "a \"b\"", "n": [1], "name": "f"}</tool_call>',
            (("f", "{}"),),
        ),
        Answer("hermes", call(r'"{\u0022count\u0022: 1, \"text\": \"\ud83d\ude00"'), _strings()),
        Answer("hermes", call(r'"{\"text\": \u12"'), (("f", r'{"text": "\\u12"}'),)),
        plain('<tool_call>{"name" "f"}</tool_call>'),
        plain('<tool_call>{"name": 7}</tool_call>'),
    ]


def _hermes_text() -> list[Answer]:
    def plain(text: str) -> Answer:
        return Answer("hermes", text, (text,))

    return [
        plain("plain text"),
        plain(" a < b <tool and c\n"),
        plain("a <tool_call>oops</tool_call> b"),
        plain("<tool_call>7</tool_call>"),
        plain('<tool_call>{"name": "f", "argum'),
        plain('<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        plain('<tool_call>{"name": "f", "arguments": "no"}</tool_call>'),
        plain('<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ]


def _strings() -> tuple[Call]:
    return (("f", r'{"count": 1, "text": "\ud83d\ude00"}'),)


def _cut(text: str) -> tuple[Call]:
    return (("f", f'{{"text": "{text}'),)


def _up_to(text: str, last: str) -> str:
    return text[: text.index(last) + len(last)]


def _qwen3_coder() -> list[Answer]:
    def value(name: str, text: str) -> str:
        return f"<parameter={name}>\n{text}\n</parameter>\n"

    def call(inner: str, name: str = "f") -> str:
        return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"

    typed = "".join(
        value(name, text)
        for name, text in {
            "count": "123",
            "ratio": "-1.5e3",
            "text": "123",
            "flag": "True",
            "map": '{"a": [1]}',
            "list": "[1, 2]",
            "maybe": "null",
        }.items()
    )
    seen_typed = (
        '{"count": 123, "ratio": -1.5e3, "text": "123", "flag": true, "map": {"a": [1]}, '
        '"list": [1, 2], "maybe": null}'
    )
    one, seen = call(value("count", "1")), ("f", '{"count": 1}')

    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("qwen3_coder", text, seen)

    return [
        answer(call(typed), ("f", seen_typed)),
        answer(f"I do.\n{one}\n{call('', 'g')}\nbye", "I do.", seen, ("g", "{}"), "bye"),
        answer(call(value("text", LINES)), ("f", f'{{"text": {LINES_JSON}}}')),
        answer(call(value("maybe", "nullify")), ("f", '{"maybe": "nullify"}')),
        answer(call(value("count", "many")), ("f", '{"count": "many"}')),
        answer(call(value("map", "{'a': True}")), ("f", '{"map": {"a": true}}')),
        answer(call(value("other", "[1]")), ("f", '{"other": "[1]"}')),
        answer(
            call("<parameter=text>a</parameter><parameter=count>2\n"),
            ("f", '{"text": "a", "count": 2}'),
        ),
        answer(one.removeprefix("<tool_call>\n"), seen),
        answer(one.removesuffix("</function>\n</tool_call>"), seen),
        answer(one[:-5], seen),
        answer("<tool_call>\n<function=f>\n<parameter=text>\nab", *_cut("ab")),
        answer("<tool_call><function=f><parameter=count>12", ("f", '{"count": ')),
        answer(f"<tool_call>{_json('f', '{}')}</tool_call>", ("f", "{}")),
        answer(
            "<function=f></function>\n<function=g>\n</function> x", ("f", "{}"), ("g", "{}"), "x"
        ),
        answer("<function=g></function><b>", ("g", "{}"), "<b>"),
        answer("<function=not a name>", "<function=not a name>"),
        answer("<tool_call>text</tool_call>", "<tool_call>text</tool_call>"),
    ]


def _glm() -> list[Answer]:
    def value(name: str, text: str, gap: str = "\n") -> str:
        return f"<arg_key>{name}</arg_key>{gap}<arg_value>{text}</arg_value>{gap}"

    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("glm", text, seen)

    old = f"<tool_call>f\n{value('count', '1')}{value('text', LINES)}</tool_call>"
    new = f"<tool_call>f{value('flag', 'false', '')}{value('list', '[1]', '')}</tool_call>"
    seen_old = ("f", f'{{"count": 1, "text": {LINES_JSON}}}')
    seen_new = ("f", '{"flag": false, "list": [1]}')
    return [
        answer(old, seen_old),
        answer(f"Hm. {new}<tool_call>g</tool_call> ok", "Hm.", seen_new, ("g", "{}"), "ok"),
        answer(f"{old}\n{new}", seen_old, seen_new),
        answer(new.removesuffix("</tool_call>"), seen_new),
        answer("<tool_call>f<arg_key>text</arg_key><arg_value>ab", *_cut("ab")),
        answer("<tool_call>g\n</tool_call>", ("g", "{}")),
        answer("<tool_call>some words</tool_call>", "<tool_call>some words</tool_call>"),
        answer('<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>'),
        answer("<tool_call>g", "<tool_call>g"),
    ]


def _llama() -> list[Answer]:
    one, two = _json("f", NESTED, "parameters"), _json("g", "{}", "parameters")

    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("llama3_json", text, seen)

    json_answer = '{"name": "Bob", "parameters": {"age": 3}}'
    code = '<|python_tag|>search.call(query="x")'
    return [
        answer(one, ("f", NESTED)),
        answer(f"\n{one}; {two}", ("f", NESTED), ("g", "{}")),
        answer(f"<|python_tag|>{two}", ("g", "{}")),
        answer("<|python_tag|>" + _json("unknown", "{}"), ("unknown", "{}")),
        answer(f"Sure. {two}", f"Sure. {two}"),
        answer(one[: one.index("🙂")] + '"', ("f", NESTED[: NESTED.index("🙂")] + '"}')),
        answer(json_answer, json_answer),
        answer('{"a": 1}', '{"a": 1}'),
        answer('{"name": "g"}', '{"name": "g"}'),
        answer(code, code),
    ]


def _mistral() -> list[Answer]:
    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("mistral", text, seen)

    one, two = _json("f", NESTED), _json("g", "{}")
    return [
        answer(f"[TOOL_CALLS][{one}, {two}]", ("f", NESTED), ("g", "{}")),
        answer(f"[TOOL_CALLS] [{one}", ("f", NESTED)),
        answer(f"[TOOL_CALLS]{two}", ("g", "{}")),
        answer(
            f"ok [TOOL_CALLS]f[ARGS]{NESTED}[TOOL_CALLS]g{{}}", "ok", ("f", NESTED), ("g", "{}")
        ),
        answer("[TOOL_CALLS]g[CALL_ID]abcDEF123[ARGS]{} x", ("g", "{}"), "x"),
        answer('[TOOL_CALLS]f[ARGS]{"text": "ab', *_cut("ab")),
        answer("[TOOL_CALLS] are a thing", "[TOOL_CALLS] are a thing"),
        answer("[TOOL_CALLS][1]", "[TOOL_CALLS][1]"),
        answer("[TOOL_CALLS]f[X]{}", "[TOOL_CALLS]f[X]{}"),
        answer("[TOOL_CALLS]f[CALL_ID]a-b", "[TOOL_CALLS]f[CALL_ID]a-b"),
        answer("[TOOL_CALLS]f[ARGS]no", "[TOOL_CALLS]f[ARGS]no"),
        answer("an [array] of [TOOL", "an [array] of [TOOL"),
    ]


def _phi() -> list[Answer]:
    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("phi4_mini", text, seen)

    one, two = _json("f", NESTED), _json("g", "{}")
    return [
        answer(f"<|tool_call|>[{one}, {two}]<|/tool_call|>", ("f", NESTED), ("g", "{}")),
        answer(f"Sure.\n<|tool_call|>{two}<|/tool_call|> ok", "Sure.", ("g", "{}"), "ok"),
        answer(f"<|tool_call|>[{two}]", ("g", "{}")),
        answer('<|tool_call|>[{"name": "f", "arguments": {"text": "ab', *_cut("ab")),
        answer("<|tool_call|> is a tag", "<|tool_call|> is a tag"),
        answer("<|tool_call|>[1]<|/tool_call|>", "<|tool_call|>[1]<|/tool_call|>"),
    ]


def _gemma() -> list[Answer]:
    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("function_gemma", text, seen)

    def call(arguments: str, name: str = "f") -> str:
        return f"<start_function_call>call:{name}{{{arguments}}}<end_function_call>"

    all_kinds = (
        "count:3,ratio:-1.5e3,flag:true,map:{a:[1,<escape>x, y}<escape>],b:{}},list:[1,2],"
        f"text:<escape>{LINES}<escape>,maybe:null"
    )
    seen_all = (
        '{"count": 3, "ratio": -1.5e3, "flag": true, "map": {"a": [1, "x, y}"], "b": {}}, '
        f'"list": [1, 2], "text": {LINES_JSON}, "maybe": null}}'
    )
    return [
        answer(call(all_kinds), ("f", seen_all)),
        answer(
            f"I do. {call('', 'g')}{call('count:1')} bye",
            "I do.",
            ("g", "{}"),
            ("f", '{"count": 1}'),
            "bye",
        ),
        answer(
            call("count: 1 , <escape>flag<escape>: true")[:-5], ("f", '{"count": 1, "flag": true}')
        ),
        answer("<start_function_call>declare:f{}", "<start_function_call>declare:f{}"),
        answer("<start_function_call>call:a b{", "<start_function_call>call:a b{"),
        answer("the <start_function_call", "the <start_function_call"),
    ]


def _deepseek_v3() -> list[Answer]:
    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("deepseek_v3", text, seen)

    def section(*calls: str) -> str:
        return f"<｜tool▁calls▁begin｜>{chr(10).join(calls)}<｜tool▁calls▁end｜>"

    def fenced(name: str, arguments: str) -> str:
        head = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n"
        return f"{head}```json\n{arguments}\n```<｜tool▁call▁end｜>"

    def bare(name: str, arguments: str) -> str:
        return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"

    seen = (("f", NESTED), ("g", "{}"))
    return [
        answer(f"Hm.\n{section(fenced('f', NESTED), fenced('g', '{}'))}", "Hm.", *seen),
        answer(f"{section(bare('f', NESTED), bare('g', '{}'))} ok", *seen, "ok"),
        answer(bare("g", "{}"), ("g", "{}")),
        answer(section(fenced("g", "{}"))[:-30], ("g", "{}")),
        answer(section(bare("f", '{"count": 1')), ("f", '{"count": 1}')),
        answer(_up_to(bare("f", '{"text": "ab'), '"ab'), *_cut("ab")),
        answer(section("no call"), section("no call")),
        answer("<｜tool▁call▁begin｜>a b c{", "<｜tool▁call▁begin｜>a b c{"),
    ]


def _deepseek_v4() -> list[Answer]:
    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("deepseek_v4", text, seen)

    def value(name: str, text: str, kind: str) -> str:
        said = f' string="{kind}"' if kind else ""
        return f'<｜DSML｜parameter name="{name}"{said}>{text}</｜DSML｜parameter>\n'

    def invoke(name: str, inner: str) -> str:
        return f'<｜DSML｜invoke name="{name}">\n{inner}</｜DSML｜invoke>\n'

    def section(*calls: str, word: str = "tool_calls") -> str:
        return f"<｜DSML｜{word}>\n{''.join(calls)}</｜DSML｜{word}>"

    text = (
        value("text", LINES, "true") + value("map", '{"a": 1}', "false") + value("count", "3", "")
    )
    one, seen = invoke("f", text), ("f", f'{{"text": {LINES_JSON}, "map": {{"a": 1}}, "count": 3}}')
    old = "<｜DSML｜tool_call_begin｜>g\n```json\n{}\n```\n<｜DSML｜tool_call_end｜>\n"

    def spaced(text: str) -> str:  # as V4.1 writes it
        for word in ("invoke", "parameter"):
            text = text.replace(f"｜DSML｜{word}", f"｜DSML｜ {word}")
        return text.replace("｜DSML｜tool_calls", "｜DSML｜ calls")

    return [
        answer(
            spaced(f"So.\n\n{section(one, invoke('g', ''))} ok"), "So.", seen, ("g", "{}"), "ok"
        ),
        answer(spaced(section(invoke("f", NESTED))), ("f", NESTED)),
        answer(spaced(section(one))[:-30], seen),
        answer(
            _up_to(spaced(section(invoke("f", value("text", "ab", "true")))), ">ab"), *_cut("ab")
        ),
        answer(f"So.\n\n{section(one, invoke('g', ''))} ok", "So.", seen, ("g", "{}"), "ok"),
        answer(section(one, word="function_calls"), seen),
        answer(section(invoke("f", NESTED)), ("f", NESTED)),
        answer(
            section(invoke("f", value("list", "not json", "false"))), ("f", '{"list": "not json"}')
        ),
        answer(section(one)[:-30], seen),
        answer(_up_to(section(invoke("f", value("text", "ab", "true"))), ">ab"), *_cut("ab")),
        answer(f"<｜DSML｜tool_calls_begin｜>\n{old}<｜DSML｜tool_calls_end｜>", ("g", "{}")),
        answer(section(), section()),
        answer(section("text"), section("text")),
    ]


def _kimi() -> list[Answer]:
    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("kimi_k2", text, seen)

    def call(call_id: str, arguments: str) -> str:
        begin = f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>"
        return f"{begin}{arguments}<|tool_call_end|>"

    def section(*calls: str) -> str:
        return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"

    two = section(call("functions.f:0", NESTED), call("functions.g:1", "{}"))
    return [
        answer(f"Now. {two} ok", "Now.", ("f", NESTED), ("g", "{}"), "ok"),
        answer(call("functions.g:3", "{}"), ("g", "{}")),
        answer(section(call("g", '{"a": 1')), ("g", '{"a": 1}')),
        answer(two[:-10], ("f", NESTED), ("g", "{}")),
        answer(_up_to(section(call("f:0", '{"text": "ab')), '"ab'), *_cut("ab")),
        answer(section("what"), section("what")),
        answer(section(call("f:0", "text")), section(call("f:0", "text"))),
    ]


def _gemma4() -> list[Answer]:
    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("gemma4", text, seen)

    def call(arguments: str, name: str = "f") -> str:
        return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>"

    quote = '<|"|>'
    all_kinds = (
        f"count:3,flag:true,map:{{a:[1,{quote}x, y}}{quote}],{quote}b{quote}:{{}}}},"
        f"text:{quote}{LINES}{quote},maybe:null"
    )
    seen_all = (
        f'{{"count": 3, "flag": true, "map": {{"a": [1, "x, y}}"], "b": {{}}}}, '
        f'"text": {LINES_JSON}, "maybe": null}}'
    )
    return [
        answer(call(all_kinds), ("f", seen_all)),
        answer(
            f"I do.{call('', 'g')}{call('count:1')}", "I do.", ("g", "{}"), ("f", '{"count": 1}')
        ),
        answer(_up_to(call(f"text:{quote}ab"), "ab"), *_cut("ab")),
        answer("<|tool_call>response:f{}", "<|tool_call>response:f{}"),
        answer("a <|tool_call", "a <|tool_call"),
    ]


def _harmony() -> list[Answer]:
    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("harmony", text, seen)

    def call(name: str, arguments: str, kind: str = " <|constrain|>json") -> str:
        return f"<|channel|>commentary to=functions.{name}{kind}<|message|>{arguments}<|call|>"

    other = "<|channel|>final<|message|>text"
    return [
        answer(call("f", NESTED), ("f", NESTED)),
        answer(call("g", "{}", " json"), ("g", "{}")),
        answer(call("g", "{}", ""), ("g", "{}")),
        answer(call("f", '{"count": 1}').removesuffix("<|call|>"), ("f", '{"count": 1}')),
        answer(f"Sure.{call('g', '{}')}{call('f', '{}')}", "Sure.", ("g", "{}"), ("f", "{}")),
        answer(_up_to(call("f", '{"text": "ab"}'), "ab"), *_cut("ab")),
        answer(other, other),
        answer(call("g", "{}").replace("functions.g", "browser.open"), ("browser.open", "{}")),
    ]


def _minimax() -> list[Answer]:
    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("minimax_m2", text, seen)

    def value(name: str, text: str) -> str:
        return f'<parameter name="{name}">{text}</parameter>\n'

    def invoke(inner: str, name: str = "f") -> str:
        return f'<invoke name="{name}">\n{inner}</invoke>\n'

    def section(*calls: str) -> str:
        return f"<minimax:tool_call>\n{''.join(calls)}</minimax:tool_call>"

    one = invoke(value("text", LINES) + value("count", "3") + value("list", "[1]"))
    seen = ("f", f'{{"text": {LINES_JSON}, "count": 3, "list": [1]}}')
    return [
        answer(section(one), seen),
        answer(f"So.\n{section(one, invoke('', 'g'))} ok", "So.", seen, ("g", "{}"), "ok"),
        answer(section(one)[:-12], seen),
        answer(_up_to(section(invoke(value("text", "ab"))), ">ab"), *_cut("ab")),
        answer(section("text"), section("text")),
        answer(section(), section()),
    ]


def _minimax_others() -> list[Answer]:
    p = "]<]minimax[>["

    def three(text: str, *seen: str | Call) -> Answer:
        return Answer("minimax_m3", text, seen)

    def one(text: str, *seen: str | Call) -> Answer:
        return Answer("minimax_m1", text, seen)

    def value(name: str, text: str) -> str:
        return f"{p}<{name}>{text}{p}</{name}>"

    def section(inner: str, name: str = "f") -> str:
        return f'{p}<tool_call>\n{p}<invoke name="{name}">{inner}{p}</invoke>\n{p}</tool_call>'

    nested = value("map", value("a", value("item", "1") + value("item", "x")) + value("b", " y"))
    lines = f"<tool_calls>\n{_json('f', NESTED)}\n{_json('g', '{}')}\n</tool_calls>"
    return [
        three(
            section(value("text", LINES) + value("count", "3") + value("list", value("item", "1"))),
            ("f", f'{{"text": {LINES_JSON}, "count": 3, "list": [1]}}'),
        ),
        three(section(nested), ("f", '{"map": {"a": ["1", "x"], "b": " y"}}')),
        three(
            f"So. {section('', 'g')} ]<] {section(value('flag', 'true'))}",
            "So.",
            ("g", "{}"),
            "]<]",
            ("f", '{"flag": true}'),
        ),
        three(section(value("text", "a <b> ]< c")), ("f", '{"text": "a <b> ]< c"}')),
        three(section(value("count", "3"))[: -len(p) - 13], ("f", '{"count": 3}')),
        three(_up_to(section(value("text", "ab")), ">ab"), *_cut("ab")),
        three(f"{p}<tool_call>text", f"{p}<tool_call>text"),
        one(lines, ("f", NESTED), ("g", "{}")),
        one(f"Now. {lines} ok", "Now.", ("f", NESTED), ("g", "{}"), "ok"),
        one(f"<tool_calls>[{_json('g', '{}')}]</tool_calls>", ("g", "{}")),
        one("<tool_calls>none</tool_calls>", "<tool_calls>none</tool_calls>"),
    ]


def _lfm2() -> list[Answer]:
    def answer(text: str, *seen: str | Call) -> Answer:
        return Answer("lfm2", text, seen)

    def calls(inner: str) -> str:
        return f"<|tool_call_start|>[{inner}]<|tool_call_end|>"

    kinds = (
        "f(count=3, ratio=-1.5e3, flag=True, maybe=None, list=[1, 2,], map={'a': {\"b\": []}}, "
        "text='it''s \"so\"\\n\\u00e9 [x], y)')"
    )
    seen = (
        '{"count": 3, "ratio": -1.5e3, "flag": true, "maybe": null, "list": [1, 2], '
        '"map": {"a": {"b": []}}, "text": "it\'\'s \\"so\\"\\né [x], y)"}'
    )
    return [
        answer(calls(kinds), ("f", seen)),
        answer(
            f"Now.{calls('g(), f(count=1)')} ok", "Now.", ("g", "{}"), ("f", '{"count": 1}'), "ok"
        ),
        answer(calls("g()")[:-8], ("g", "{}")),
        answer(calls(_json("f", NESTED)), ("f", NESTED)),
        answer("<|tool_call_start|>[f(text='ab", *_cut("ab")),
        answer(calls("text"), calls("text")),
        answer(calls("see (a) and"), calls("see (a) and")),
    ]


def _lists() -> list[Answer]:
    """Formats that are a JSON list between two tags."""
    found = []
    for form, start, end, key, inner in (
        ("apertus", "<|tools_prefix|>", "<|tools_suffix|>", "", '{{"{0}": {1}}}'),
        ("nemotron", "<TOOLCALL>", "</TOOLCALL>", "arguments", ""),
        ("cohere", "<|START_ACTION|>", "<|END_ACTION|>", "parameters", ""),
    ):
        one, two = (
            inner.format(name, arguments) if inner else _json(name, arguments, key)
            for name, arguments in (("f", NESTED), ("g", "{}"))
        )
        seen = (("f", NESTED), ("g", "{}"))
        found += [
            Answer(form, f"Now. {start}[{one}, {two}]{end} ok", ("Now.", *seen, "ok")),
            Answer(form, f"{start}[\n{two}\n]", (("g", "{}"),)),
            Answer(form, f"{start}[1]{end}", (f"{start}[1]{end}",)),
            Answer(form, f"{start} is a tag", (f"{start} is a tag",)),
        ]
    asked = '[{"tool_call_id": "0", "tool_name": "g", "parameters": {"a": 1}}]'
    return [
        *found,
        Answer("cohere", f"<|START_ACTION|>{asked}<|END_ACTION|>", (("g", '{"a": 1}'),)),
        Answer("nemotron", '<TOOLCALL>[{"name": "g", "arguments": "{}"}]', (("g", "{}"),)),
    ]


def _seed() -> list[Answer]:
    call = "<function=f>\n<parameter=count>1</parameter>\n</function>"
    seen = ("f", '{"count": 1}')
    text = f"<seed:tool_call>\n{call}\n</seed:tool_call>"
    return [
        Answer("qwen3_coder", text, (seen,)),
        Answer("qwen3_coder", f"Now.\n{text}\n{text} ok", ("Now.", seen, seen, "ok")),
        Answer("qwen3_coder", text[:-8], (seen,)),
    ]


ANSWERS: Final = (
    *(Answer(*one) for one in tagged_answers()),
    *_gemma4(), *_harmony(), *_minimax(), *_minimax_others(), *_lfm2(), *_lists(),
    *_seed(), *_hermes(), *_hermes_text(), *_qwen3_coder(), *_glm(), *_llama(), *_mistral(),
    *_phi(), *_gemma(),
    *_deepseek_v3(), *_deepseek_v4(), *_kimi(),
)  # fmt: skip
