"""MiniCPM5: `<function name="f"><param name="x">value</param></function>`, one behind the other.

A value with tags or several lines stands in `<![CDATA[...]]>`. Values have the types of the tool's
schema.
"""

from typing import Final

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
from gateway.output.tools.value_end import Path

FUNCTION_TAG: Final = "<function"
FUNCTION: Final = f'{FUNCTION_TAG} name="'
END_FUNCTION: Final = "</function>"
PARAMETER_TAG: Final = "<param"
PARAMETER: Final = f'{PARAMETER_TAG} name="'
END_PARAMETER: Final = "</param>"
QUOTED: Final = "<![CDATA["
END_QUOTED: Final = "]]>"
_TAGS: Final = (PARAMETER, END_FUNCTION)
_ENDS: Final[tuple[Path, ...]] = tuple((END_PARAMETER, tag) for tag in _TAGS)
_QUOTED_ENDS: Final[tuple[Path, ...]] = tuple((END_QUOTED, *path) for path in _ENDS)


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The call behind the opening of its tag."""
    name, _ = yield from name_until(calls, '"')
    yield from literal(">", (yield from skip_space()))
    tag = yield from one_of(_TAGS, (yield from skip_space()))
    arguments = ArgumentsWriter(calls, name)
    while tag == PARAMETER:
        with arguments.half():
            parameter = yield from _parameter()
            is_quoted, begun = yield from _beginning()
        types = types_of(calls.schema(name, parameter))
        ends = _QUOTED_ENDS if is_quoted else _ENDS
        *_, tag = yield from arguments.read_value(parameter, types, ends, begun=begun)
    arguments.end()


def _parameter() -> Read[str]:
    """The name in the tag of a parameter, which may hold quotes; a line ends it, too."""
    text = ""
    while (char := (yield)) not in ">\n":
        text += char if len(text) < MAX_NAME else ""
    return text.rstrip().removesuffix('"')


def _beginning() -> Read[tuple[bool, str]]:
    """Whether a value is quoted, and what was read of one that is not."""
    text = yield
    while QUOTED.startswith(text):
        if text == QUOTED:
            return True, ""
        text += yield
    return False, text
