"""Tool calls in the text of a model.

`parser.py` finds sections of calls in text and tells events; a grammar per format reads a section
(`hermes.py` and its neighbours, by name in `formats.py`); `json_text.py` is the JSON that they
share, `object_text.py` and `ledger_schema.py` are for formats that write values as plain text;
`forcing.py` makes a model call.
"""

from gateway.output.tools.forcing import Opening, forced_opening
from gateway.output.tools.formats import TOOL_FORMATS, ToolFormat, detect_tool_format
from gateway.output.tools.parser import ToolParser

__all__ = [
    "TOOL_FORMATS",
    "Opening",
    "ToolFormat",
    "ToolParser",
    "detect_tool_format",
    "forced_opening",
]
