"""Which formats of calls have grammars, each by its syntax.

A format whose tags the tokenizer does not know has none. Must not know schemas or requests.
"""

from gateway.output.tools.formats import ToolFormat
from gateway.output.tools.json_syntaxes import JSON_SYNTAXES
from gateway.output.tools.syntax_parts import CallSyntax, LoneId
from gateway.output.tools.value_syntaxes import VALUE_SYNTAXES


def call_syntax(
    tool_format: ToolFormat | None, template: str, lone_id: LoneId
) -> CallSyntax | None:
    """The syntax of the format in the version of the template; None if it has no grammar, or the
    tokenizer has no token for a tag that it needs.
    """
    name = "" if tool_format is None else tool_format.name
    make = JSON_SYNTAXES.get(name) or VALUE_SYNTAXES.get(name)
    return None if make is None else make(template, lone_id)
