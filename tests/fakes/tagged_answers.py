"""What models write when they call tools in the formats of Hy3, Kimi K3, MiniCPM5, Solar Open and
GigaChat and Muse Glimmer, beside `tool_answers.py`.
"""

from typing import Final

LINES: Final = 'first "line"\n\tsecond <b>\n\n{third} 日本 🙂 \\n'
LINES_JSON: Final = r'"first \"line\"\n\tsecond <b>\n\n{third} 日本 🙂 \\n"'
NESTED: Final = (
    r'{"text": "if (a) { print(\"</tool_call>}\") } \\ \u00e9 日本 🙂", "map": {"x": [{}, "]"]}}'
)
ONE: Final = ("f", f'{{"count": 1, "text": {LINES_JSON}}}')
NONE: Final = ("g", "{}")
CUT: Final = ("f", '{"text": "ab')

Seen = tuple[str | tuple[str, str], ...]


def tagged_answers() -> list[tuple[str, str, Seen]]:
    """The format, the text, and what a client is to see of it."""
    return [*_hy(), *_kimi(), *_minicpm(), *_solar(), *_gigachat(), *_muse()]


def _hy() -> list[tuple[str, str, Seen]]:
    def tag(name: str) -> str:
        return f"<{name}:opensource>"

    def value(name: str, text: str) -> str:
        key = f"{tag('arg_key')}{name}{tag('/arg_key')}"
        return f"{key}\n{tag('arg_value')}{text}{tag('/arg_value')}\n"

    def call(name: str, *values: str) -> str:
        begin = f"{tag('tool_call')}{name}{tag('tool_sep')}\n"
        return f"{begin}{''.join(values)}{tag('/tool_call')}\n"

    start, end = f"{tag('tool_calls')}\n", tag("/tool_calls")
    one = call("f", value("count", "1"), value("text", LINES))
    begun = f"{tag('tool_call')}f{tag('tool_sep')}\n{tag('arg_key')}text{tag('/arg_key')}"
    texts: list[tuple[str, Seen]] = [
        (f"{start}{one}{end}", (ONE,)),
        (f"Hm.\n{start}{one}{call('g')}{end} ok", ("Hm.", ONE, NONE, "ok")),
        (f"{one}{end}", (ONE,)),
        (f"{start}{one}", (ONE,)),
        (f"{start}{begun}{tag('arg_value')}ab", (CUT,)),
        (f"{start}nothing", (f"{start}nothing",)),
    ]
    return [("hy3", *one_of) for one_of in texts]


def _kimi() -> list[tuple[str, str, Seen]]:
    def tag(words: str) -> str:
        return f"<|open|>{words}<|sep|>"

    def end(words: str) -> str:
        return f"<|close|>{words}<|sep|>"

    def value(name: str, kind: str, text: str) -> str:
        return tag(f'argument key="{name}" type="{kind}"') + text + end("argument")

    def call(name: str, *values: str) -> str:
        return tag(f'call tool="{name}" index="1"') + "".join(values) + end("call")

    one = call("f", value("count", "number", "1"), value("text", "string", LINES))
    whole = call("f", tag('json type="object"') + NESTED + end("json"))
    begun = tag('call tool="f" index="1"') + tag('argument key="text" type="string"')
    calls, over = tag("tools"), f"{end('tools')}{end('message')}"
    texts: list[tuple[str, Seen]] = [
        (f"{calls}{one}{over}", (ONE,)),
        (f"Hm.{calls}{one}{call('g')}{over}", ("Hm.", ONE, NONE)),
        (f"{calls}{whole}{over}", (("f", NESTED),)),
        (f"{calls}{one}{end('tools')} ok", (ONE, "ok")),
        (
            f"{calls}{begun}ab",
            (CUT,),
        ),
        (call("g"), (call("g"),)),
    ]
    return [("kimi_k3", *one_of) for one_of in texts]


def _minicpm() -> list[tuple[str, str, Seen]]:
    def value(name: str, text: str) -> str:
        return f'<param name="{name}">{text}</param>'

    def call(name: str, *values: str) -> str:
        return f'<function name="{name}">{"".join(values)}</function>'

    one = call("f", value("count", "1"), value("text", f"<![CDATA[{LINES}]]>"))
    tags = value("text", "<![CDATA[</param></function>]]>")
    texts: list[tuple[str, Seen]] = [
        (one, (ONE,)),
        (f"Hm.\n\n{one}{call('g')} ok", ("Hm.", ONE, NONE, "ok")),
        (call("f", tags), (("f", '{"text": "</param></function>"}'),)),
        (call("f", value("text", "<![CDAT")), (("f", '{"text": "<![CDAT"}'),)),
        (call("f", value("map", "{'a': None}")), (("f", '{"map": {"a": null}}'),)),
        ('<function name="f"><param name="text">ab', (CUT,)),
        ('<function name="f">text', ('<function name="f">text',)),
    ]
    return [("minicpm5", *one_of) for one_of in texts]


def _solar() -> list[tuple[str, str, Seen]]:
    def call(name: str, arguments: str) -> str:
        head = f"<|tool_call:begin|>aB3dE6gH9j<|tool_call:name|>{name}<|tool_call:args|>"
        return f"{head}{arguments}<|tool_call:end|>"

    start = "<|tool_calls|>"
    one = call("f", NESTED)
    seen = ("f", NESTED)
    half = call("f", '{"text": "ab').removesuffix("<|tool_call:end|>")
    texts: list[tuple[str, Seen]] = [
        (f"{start}{one}<|calls|>", (seen,)),
        (f"Hm. {start}{one}{call('g', '{}')}<|calls|>", ("Hm.", seen, NONE)),
        (f"{start}{call('g', '')}", (NONE,)),
        (f"{start}{half}", (CUT,)),
        (f"{start} is a tag", (f"{start} is a tag",)),
    ]
    return [("solar_open", *one_of) for one_of in texts]


def _gigachat() -> list[tuple[str, str, Seen]]:
    def call(name: str, arguments: str) -> str:
        return f'<|function_call|>{{"name": "{name}", "arguments": {arguments}}}'

    texts: list[tuple[str, Seen]] = [
        (f"{call('f', NESTED)}<|message_sep|>\n\n", (("f", NESTED),)),
        (f"Hm. {call('g', '{}')}", ("Hm.", NONE)),
        ("<|function_call|> is a tag", ("<|function_call|> is a tag",)),
    ]
    return [("gigachat", *one_of) for one_of in texts]


def _muse() -> list[tuple[str, str, Seen]]:
    def section(*values: tuple[str, str], name: str = "f") -> str:
        inner = "".join(
            f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in values
        )
        call = f'<atem:invoke name="{name}">\n{inner}</atem:invoke>\n'
        return f"<atem:function_calls>\n{call}</atem:function_calls>"

    one = section(("count", "1"), ("text", LINES))
    half = section(("text", "ab")).partition("ab")[0] + "ab"
    texts: list[tuple[str, Seen]] = [
        (one, (ONE,)),
        (f"So.\n{one}{section(name='g')} ok", ("So.", ONE, NONE, "ok")),
        (half, (CUT,)),
        ("<atem:function_calls> is a tag", ("<atem:function_calls> is a tag",)),
    ]
    return [("muse_glimmer", *one_of) for one_of in texts]
