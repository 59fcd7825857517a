"""Calls as tags with the name in an attribute: `<invoke name="f"><parameter name="x">value
</parameter></invoke>`, in a section of one or several. DeepSeek's DSML and MiniMax write them, each
with tags of its own.

`string="true"` or `"false"` beside a parameter's name says whether its value is text or JSON;
without it the tool's schema does. A JSON object in place of the parameters is read as well.
"""

import re
from typing import Final, NamedTuple

from gateway.output.tools.arguments_writer import ArgumentsWriter
from gateway.output.tools.grammar import (
    MAX_NAME,
    CallSink,
    Read,
    literal,
    name_until,
    object_and_tag,
    one_of,
    skip_space,
)
from gateway.output.tools.schema import types_of
from gateway.output.tools.value_end import ExampleCall, Path

_IS_STRING: Final = re.compile(r'string\s*=\s*"(true|false)"')


class InvokeTags(NamedTuple):
    """The tags of a format; `invoke` and `parameter` end where the name begins."""

    sections: tuple[str, ...]
    end_sections: tuple[str, ...]
    invoke: str
    end_invoke: str
    parameter: str
    end_parameter: str

    @property
    def in_call(self) -> tuple[str, ...]:
        return (self.parameter, self.end_invoke, *self.end_sections)

    @property
    def value_ends(self) -> tuple[Path, ...]:
        """What ends a call has to be followed by the section's end or another call, because files
        have such tags too.
        """
        end, behind = self.end_parameter, (self.invoke, *self.end_sections)
        return (
            (end, self.parameter),
            *((end, self.end_invoke, tag) for tag in behind),
            *((end, tag) for tag in self.end_sections),
        )

    @property
    def example(self) -> ExampleCall:
        """A call in a section of its own."""
        return ExampleCall((self.sections[0], self.invoke), self.end_sections[0])


def read_section(calls: CallSink, tags: InvokeTags) -> Read[None]:
    """The calls behind the opening tag of a section, and its end."""
    tag = yield from _in_section(tags)
    while tag == tags.invoke:
        tag = yield from _call(calls, tags)
        if tag == tags.end_invoke:
            tag = yield from _in_section(tags)


def _in_section(tags: InvokeTags) -> Read[str]:
    """The next tag, behind white space."""
    return (yield from one_of((tags.invoke, *tags.end_sections), (yield from skip_space())))


def _call(calls: CallSink, tags: InvokeTags) -> Read[str]:
    """One call behind `name="`; the last tag that was read: its end, the section's or the next
    call's beginning.
    """
    name, _ = yield from name_until(calls, '"')
    yield from literal(">", (yield from skip_space()))
    char = yield from skip_space()
    if char == "{":
        return (yield from object_and_tag(calls, name, (tags.end_invoke, *tags.end_sections)))
    tag = yield from one_of(tags.in_call, char)
    arguments = ArgumentsWriter(calls, name)
    while tag == tags.parameter:
        with arguments.half():
            parameter, attributes = yield from _parameter()
        said = _IS_STRING.search(attributes)
        types: frozenset[str] | None = types_of(calls.schema(name, parameter))
        if said is not None:
            types = frozenset({"string"}) if said[1] == "true" else None
        *_, tag = yield from arguments.read_value(
            parameter, types, tags.value_ends, example=tags.example
        )
    arguments.end()
    return tag


def _parameter() -> Read[tuple[str, str]]:
    """The name and the other attributes of a parameter's tag; a line ends it, too."""
    text = ""
    while (char := (yield)) not in ">\n":
        text += char if len(text) < 2 * MAX_NAME else ""
    name, _, attributes = text.partition('"')
    return name, attributes
