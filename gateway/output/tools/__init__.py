"""Tool calls in the text of a model.

`parser.py` finds sections of calls in text and turns them into events; a grammar per format reads a
section (`hermes.py` and its neighbours, by name in `formats.py`). They share `json_repair.py`;
formats that write values as plain text share `arguments_writer.py` and `schema.py`. `forcing.py`
makes a model call a tool, `call_grammar.py` lets it write nothing else in the formats of
`call_syntax.py`. Must not know tokens.
"""

from gateway.output.tools.call_grammar import (
    ARGUMENTS,
    CallableTool,
    CallGrammar,
)
from gateway.output.tools.call_syntax import call_syntax
from gateway.output.tools.forcing import Opening, forced_opening
from gateway.output.tools.formats import (
    TOOL_FORMATS,
    ToolFormat,
    detect_tool_format,
    is_known_format,
)
from gateway.output.tools.parser import ToolParser, begins_call
