"""DeepSeek V3.2 and V4: `<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="x"
string="true">value</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>`.

V3.2 says function_calls instead of tool_calls, V4.1 calls, with a space before each word in a tag.
The form that `deepseek.py` reads is read as well.
"""

from typing import Final

from gateway.output.tools import deepseek
from gateway.output.tools.grammar import CallSink, Read
from gateway.output.tools.invoke import InvokeTags, read_section

SECTIONS: Final = ("<｜DSML｜tool_calls>", "<｜DSML｜function_calls>")
END_SECTIONS: Final = ("</｜DSML｜tool_calls>", "</｜DSML｜function_calls>")
INVOKE: Final = '<｜DSML｜invoke name="'
END_INVOKE: Final = "</｜DSML｜invoke>"
PARAMETER: Final = '<｜DSML｜parameter name="'
END_PARAMETER: Final = "</｜DSML｜parameter>"
_TAGS: Final = InvokeTags(SECTIONS, END_SECTIONS, INVOKE, END_INVOKE, PARAMETER, END_PARAMETER)

SECTION_41: Final = "<｜DSML｜ calls>"
END_SECTION_41: Final = "</｜DSML｜ calls>"
INVOKE_41: Final = '<｜DSML｜ invoke name="'
END_INVOKE_41: Final = "</｜DSML｜ invoke>"
PARAMETER_41: Final = '<｜DSML｜ parameter name="'
END_PARAMETER_41: Final = "</｜DSML｜ parameter>"
_TAGS_41: Final = InvokeTags(
    (SECTION_41,), (END_SECTION_41,), INVOKE_41, END_INVOKE_41, PARAMETER_41, END_PARAMETER_41
)


def read(calls: CallSink, marker: str) -> Read[None]:
    """The section behind its opening tag."""
    if marker in SECTIONS:
        yield from read_section(calls, _TAGS)
    elif marker == SECTION_41:
        yield from read_section(calls, _TAGS_41)
    else:
        yield from deepseek.read(calls, marker, deepseek.DSML)
