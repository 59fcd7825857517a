"""Tools of Anthropic's API that the client runs and the server describes -> functions.

Owns their descriptions and parameters, by the kind in their type (`bash_20250124`); a later version
of a kind has those of the latest version in this file. Other models than Anthropic's were not
trained with these tools, so they need both. Must not know requests.
"""

import re
from typing import Any, Final

_TYPE: Final = re.compile(r"(bash|text_editor|memory|computer)_(\d{8})")

_INSERT_TEXT_SINCE: Final = "20250429"
_NEW_ACTIONS_SINCE: Final = "20250124"
_ZOOM_SINCE: Final = "20251124"

Schema = dict[str, Any]


def client_tool(tool: dict[str, Any]) -> tuple[str, Schema] | None:
    """The description and the parameters of a tool of such a type; None for any other type."""
    kind = tool.get("type")
    match = _TYPE.fullmatch(kind) if isinstance(kind, str) else None
    if match is None:
        return None
    return _TOOLS[match[1]](tool, match[2])


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _object(properties: dict[str, Schema], *required: str) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


_POINT: Final = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
}


def _bash(_tool: dict[str, Any], _version: str) -> tuple[str, Schema]:
    description = "Run a command in a bash session, which keeps its state between commands."
    restart = {"type": "boolean", "description": "true: restart the session; no command is run."}
    return description, _object({"command": _text("The command to run."), "restart": restart})


def _view_range() -> Schema:
    return {
        "type": "array",
        "items": {"type": "integer"},
        "minItems": 2,
        "maxItems": 2,
        "description": "view: the first and last line to show, from 1; -1 is the last of the file.",
    }


def _insert_line() -> Schema:
    return {
        "type": "integer",
        "description": "insert: the line behind which the text is inserted; 0 is the beginning.",
    }


def _text_editor(tool: dict[str, Any], version: str) -> tuple[str, Schema]:
    commands = ["view", "create", "str_replace", "insert"]
    inserted = "insert_text" if version >= _INSERT_TEXT_SINCE else "new_str"
    if version < _INSERT_TEXT_SINCE:
        commands.append("undo_edit")
    properties = {
        "command": {"type": "string", "enum": commands, "description": "What to do."},
        "path": _text("The path of the file or directory."),
        "view_range": _view_range(),
        "file_text": _text("create: the content of the new file."),
        "old_str": _text("str_replace: the text to replace; it must occur exactly once."),
        "new_str": _text("str_replace: the new text."),
        "insert_line": _insert_line(),
    }
    if inserted == "insert_text":
        properties["insert_text"] = _text("insert: the text.")
    else:
        properties["new_str"] = _text("str_replace: the new text; insert: the text.")
    description = "View, create and edit text files."
    most = tool.get("max_characters")
    if isinstance(most, int):
        description += f" A view shows at most {most} characters."
    return description, _object(properties, "command", "path")


def _memory(_tool: dict[str, Any], _version: str) -> tuple[str, Schema]:
    commands = ["view", "create", "str_replace", "insert", "delete", "rename"]
    description = (
        "Read and keep notes in files below /memories, which outlast this conversation. View the "
        "directory before a task, and write down progress and what later tasks need."
    )
    properties = {
        "command": {"type": "string", "enum": commands, "description": "What to do."},
        "path": _text("The path of the file or directory, for all commands but rename."),
        "view_range": _view_range(),
        "file_text": _text("create: the content of the file."),
        "old_str": _text("str_replace: the text to replace; it must occur exactly once."),
        "new_str": _text("str_replace: the new text."),
        "insert_line": _insert_line(),
        "insert_text": _text("insert: the text."),
        "old_path": _text("rename: the present path."),
        "new_path": _text("rename: the new path."),
    }
    return description, _object(properties, "command")


def _computer(tool: dict[str, Any], version: str) -> tuple[str, Schema]:
    actions = [
        "key", "type", "mouse_move", "left_click", "left_click_drag", "right_click",
        "middle_click", "double_click", "screenshot", "cursor_position",
    ]  # fmt: skip
    properties = {
        "coordinate": {**_POINT, "description": "x and y in pixels, of the mouse or a drag's end."},
        "text": _text("type: the text; key and hold_key: the keys, as in 'ctrl+s'."),
    }
    if version >= _NEW_ACTIONS_SINCE:
        actions += ["left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait"]
        actions.append("triple_click")
        ways = {"type": "string", "enum": ["up", "down", "left", "right"]}
        properties |= {
            "scroll_direction": {**ways, "description": "scroll: the direction."},
            "scroll_amount": {"type": "integer", "description": "scroll: the number of clicks."},
            "duration": {"type": "number", "description": "hold_key and wait: the seconds."},
            "start_coordinate": {**_POINT, "description": "left_click_drag: where it begins."},
        }
    if version >= _ZOOM_SINCE and tool.get("enable_zoom"):
        actions.append("zoom")
        corners = {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4}
        properties["region"] = {**corners, "description": "zoom: x0, y0, x1, y1 in pixels."}
    size = f"{tool.get('display_width_px')} x {tool.get('display_height_px')} pixels"
    description = f"Use a screen of {size} with mouse and keyboard, and take screenshots of it."
    action = {"type": "string", "enum": actions, "description": "What to do."}
    return description, _object({"action": action, **properties}, "action")


_TOOLS: Final = {
    "bash": _bash,
    "text_editor": _text_editor,
    "memory": _memory,
    "computer": _computer,
}
