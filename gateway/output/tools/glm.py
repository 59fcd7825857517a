"""GLM 4.5 to 4.7: `<tool_call>name<arg_key>x</arg_key><arg_value>value</arg_value></tool_call>`,
with line breaks between the parts in 4.5.

Hy3: the same with `:opensource` in each tag, `<tool_sep:opensource>` behind the name, and
`<tool_calls:opensource>` around the calls.

Values have the types of the tool's schema. A block is a call once its name is followed by a key or
by the end tag. The tag before a value may be missing (vllm#49248), and so may the end of a key.
"""

from typing import Final, NamedTuple

from gateway.output.tags import TagScan
from gateway.output.tools.arguments_writer import ArgumentsWriter
from gateway.output.tools.grammar import (
    MAX_NAME,
    CallSink,
    Read,
    literal,
    name_until,
    one_of,
    skip_space,
)
from gateway.output.tools.schema import types_of
from gateway.output.tools.value_end import NAME, ExampleCall, Path


class GlmTags(NamedTuple):
    """The tags of a format; `behind_name` is "" in a format without a tag after the name."""

    open: str
    close: str
    key: str
    end_key: str
    value: str
    end_value: str
    behind_name: str = ""

    @property
    def value_ends(self) -> tuple[Path, ...]:
        return (self.end_value, self.key), (self.end_value, self.close)

    @property
    def example(self) -> ExampleCall:
        opening = (self.open, NAME, self.behind_name or self.key)
        return ExampleCall(opening, self.close)


GLM: Final = GlmTags(
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
)
HY: Final = GlmTags(
    "<tool_call:opensource>",
    "</tool_call:opensource>",
    "<arg_key:opensource>",
    "</arg_key:opensource>",
    "<arg_value:opensource>",
    "</arg_value:opensource>",
    "<tool_sep:opensource>",
)
HY_SECTION: Final = "<tool_calls:opensource>"
HY_END_SECTION: Final = "</tool_calls:opensource>"


def read(calls: CallSink, _marker: str) -> Read[None]:
    """GLM's block behind its opening tag."""
    yield from _call(calls, GLM)


def read_hy(calls: CallSink, marker: str) -> Read[None]:
    """Hy3's section behind its opening tag, or behind that of its first call."""
    tags = HY.open, HY_END_SECTION
    tag = marker if marker == HY.open else (yield from one_of(tags, (yield from skip_space())))
    while tag == HY.open:
        yield from _call(calls, HY)
        tag = yield from one_of(tags, (yield from skip_space()))
        calls.drop()


def _call(calls: CallSink, tags: GlmTags) -> Read[None]:
    """One call behind its opening tag."""
    name, char = yield from name_until(calls, "\n<", (yield from skip_space()))
    if tags.behind_name:
        yield from literal(tags.behind_name, char)
        char = "\n"
    char = (yield from skip_space()) if char == "\n" else char
    tag = yield from one_of((tags.key, tags.close), char)
    arguments = ArgumentsWriter(calls, name)
    while tag == tags.key:
        begun = ""
        with arguments.half():
            key, tag = yield from _key(tags)
            if tag == tags.end_key:
                tag, begun = yield from _before_value(tags)
        if tag == tags.value:
            types = types_of(calls.schema(name, key))
            *_, tag = yield from arguments.read_value(
                key, types, tags.value_ends, begun=begun, example=tags.example
            )
    arguments.end()


def _key(tags: GlmTags) -> Read[tuple[str, str]]:
    """The key, and the tag behind it."""
    scan = TagScan((tags.end_key, tags.value, tags.close))
    text = ""
    while not scan.found:
        more = scan.feed((yield))
        text += more if len(text) < MAX_NAME else ""
    return text.strip(), scan.found


def _before_value(known: GlmTags) -> Read[tuple[str, str]]:
    """The tag behind a key, and what was read of a value whose tag is missing."""
    text = yield from skip_space()
    tags = (known.value, known.key, known.close)
    while any(tag.startswith(text) for tag in tags):
        if text in tags:
            return text, ""
        text += yield
    return known.value, text
