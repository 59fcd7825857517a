"""Qwen3-Coder: `<tool_call><function=name><parameter=x>value</parameter></function></tool_call>`;
Seed-OSS, whose outer tag is `<seed:tool_call>`.

Values have the types of the tool's schema; one line break on either side belongs to the tags, in
Seed-OSS, which writes none, only where one stands on both sides. The
outer tags may be missing, and so may the end of a parameter before another one of the tool. A JSON
object in place of the parameters is read as well: functionary 3.1 and the custom form of Llama 3.1
write `<function=name>{...}</function>`. JSON in the outer tag is read as Hermes' format, which the
same models sometimes write.
"""

from typing import Final

from gateway.output.tools import hermes
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

FUNCTION: Final = "<function="
PARAMETER: Final = "<parameter="
END_FUNCTION: Final = "</function>"
END_PARAMETER: Final = "</parameter>"
SEED_OPEN: Final = "<seed:tool_call>"
SEED_CLOSE: Final = "</seed:tool_call>"


def read(calls: CallSink, marker: str) -> Read[None]:
    """The block behind its outer tag or, where that is missing, behind `<function=`."""
    is_bare = marker == FUNCTION
    close = SEED_CLOSE if marker == SEED_OPEN else hermes.CLOSE
    if not is_bare:
        char = yield from skip_space()
        if char == "{" and marker == hermes.OPEN:
            yield from hermes.objects(calls, char)
            return
        yield from literal(FUNCTION, char)
    tag = FUNCTION
    while tag == FUNCTION:
        tag = yield from _function(calls, close, is_bare=is_bare)
        if tag == END_FUNCTION:
            tag = yield from one_of((close, FUNCTION), (yield from skip_space()))


def _function(calls: CallSink, close: str, *, is_bare: bool) -> Read[str]:
    """One function behind `<function=`; the last tag that was read: its end, the outer end or the
    next function's beginning.
    """
    name, _ = yield from name_until(calls, ">")
    char = yield from skip_space()
    if char == "{":
        return (yield from object_and_tag(calls, name, (END_FUNCTION, close)))
    tag = yield from one_of((PARAMETER, END_FUNCTION, close), char)
    arguments = ArgumentsWriter(calls, name)
    is_seed = close == SEED_CLOSE
    ends = _BARE_ENDS if is_bare else _VALUE_ENDS[close]
    coming = set(calls.parameters(name))
    while tag.startswith(PARAMETER):
        with arguments.half():
            parameter = tag[len(PARAMETER) : -1] or (yield from _parameter_name())
        coming.discard(parameter)
        types = types_of(calls.schema(name, parameter))
        others = [(f"\n{PARAMETER}{one}>",) for one in sorted(coming)]
        paths, skip, begun = (*ends, *others), "\n", ""
        if is_seed and (first := (yield)) != "\n":
            paths, skip, begun = (*_SEED_ENDS, *others), "", first
        elif is_seed:
            skip = ""
        example = None if is_bare else _EXAMPLES[close]
        found = yield from arguments.read_value(parameter, types, paths, skip, begun, example)
        tag = found[-1].lstrip()
    arguments.end()
    return tag


def _parameter_name() -> Read[str]:
    """The name up to `>`, or to the end of the line where a model forgets that (vllm#25028)."""
    name = ""
    while (char := (yield)) not in ">\n":
        name += char if len(name) < MAX_NAME else ""
    return name.partition("<")[0].strip(" \t\r\"'")


def _value_ends(close: str) -> tuple[Path, ...]:
    """The end of a value in an outer tag. What ends the function has to be followed by the outer
    end or another function, because files have such tags too.
    """
    ends: list[Path] = []
    for line in ("", "\n"):
        end = line + END_PARAMETER
        ends += [(end, PARAMETER), (end, close)]
        ends += [(end, END_FUNCTION, tag) for tag in (close, FUNCTION)]
    return (*ends, ("\n" + END_FUNCTION, close))


_EXAMPLES: Final = {
    hermes.CLOSE: ExampleCall((hermes.OPEN, FUNCTION), hermes.CLOSE),
    SEED_CLOSE: ExampleCall((SEED_OPEN, FUNCTION), SEED_CLOSE),
}
_VALUE_ENDS: Final = {close: _value_ends(close) for close in (hermes.CLOSE, SEED_CLOSE)}
_SEED_ENDS: Final = tuple(path for path in _VALUE_ENDS[SEED_CLOSE] if path[0] == END_PARAMETER)
_BARE_ENDS: Final[tuple[Path, ...]] = (
    *((line + END_PARAMETER, tag) for line in ("", "\n") for tag in (PARAMETER, END_FUNCTION)),
    *(("\n" + END_FUNCTION, tag) for tag in (FUNCTION, hermes.CLOSE)),
)
