"""The Responses API's own tools that a client runs (`shell`, `local_shell`, `apply_patch`) as
functions with those names, in both directions.

Owns what a model is told of them, the items of their calls, and the text of their results. Models
elsewhere were not trained with these tools, so they need a description and parameters. Must not
know messages or requests.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from protocol.reading import objects_in, read_object

_FIELDS: Final = {
    "shell_call": ("shell", "action"),
    "local_shell_call": ("local_shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
"""The tool that an item calls, and the field with the arguments of the call, by the type of the
item.
"""

CALLS: Final = _FIELDS.keys()
RESULTS: Final = frozenset(f"{kind}_output" for kind in _FIELDS)
CALL_OF: Final = {tool: kind for kind, (tool, _) in _FIELDS.items()}
"""The type of a call's item, by the type of the tool."""
_HERE: Final = (None, "local")
"""Environments of a shell that are the client's own; in others a server would run it."""
_OPERATIONS: Final = ("create_file", "update_file", "delete_file")

_encode: Final = msgspec.json.Encoder().encode

Item = dict[str, Any]
Schema = dict[str, Any]


def is_run_by_client(tool: Item) -> bool:
    """Whether a tool of such a type runs where the client is."""
    given = tool.get("environment")
    kind = given.get("type") if isinstance(given, dict) else given
    return tool.get("type") != "shell" or kind in _HERE


def function_of(tool: Item) -> dict[str, Any]:
    """The description and the parameters of the function that represents the tool."""
    text, parameters = _FUNCTIONS[tool["type"]]
    given = tool.get("environment")
    skills = [
        f"- {one.get('name')}: {one.get('description')} ({one.get('path')})"
        for one in objects_in(given.get("skills") if isinstance(given, dict) else None)
    ]
    if skills:
        text = "\n".join(
            [text, "Skills are instructions in files there; read one to use it:", *skills]
        )
    return {"description": text, "parameters": parameters}


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _whole(description: str) -> Schema:
    return {"type": "integer", "description": description}


def _object(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


_LIMIT: Final = _whole("Milliseconds after which it is stopped.")
_FUNCTIONS: Final[dict[str, tuple[str, Schema]]] = {
    "shell": (
        "Run commands in a shell on the user's machine.",
        _object(
            ("commands",),
            commands={
                "type": "array",
                "items": {"type": "string"},
                "description": "The commands, in the order in which they are run.",
            },
            timeout_ms=_LIMIT,
            max_output_length=_whole("The most characters of each command's output."),
        ),
    ),
    "local_shell": (
        "Run a program on the user's machine.",
        _object(
            ("command",),
            command={
                "type": "array",
                "items": {"type": "string"},
                "description": 'The program and its arguments, as ["bash", "-lc", "ls | wc -l"].',
            },
            working_directory=_text("The directory in which it runs."),
            timeout_ms=_LIMIT,
            env={
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "Environment variables that are set for it.",
            },
        ),
    ),
    "apply_patch": (
        "Create, change or delete one file on the user's machine.",
        _object(
            ("type", "path"),
            type={"type": "string", "enum": list(_OPERATIONS), "description": "What to do."},
            path=_text("The path of the file."),
            diff=_text(
                "create_file: the lines of the new file, each behind a `+`. update_file: sections "
                "that begin with a line `@@`, or `@@ LINE` with a line of the file above them, as "
                "that of the function; then lines of the file, each behind a space if it stays, a "
                "`-` if it goes, a `+` if it is new, with three that stay around each change."
            ),
        ),
    ),
}


def call_of(item: Item) -> tuple[str, str]:
    """The tool's name, and the arguments as JSON, without the fields that the server added to the
    model's arguments.
    """
    name, field = _FIELDS[item["type"]]
    given = item.get(field)
    arguments = given if isinstance(given, dict) else {}
    kept = {key: value for key, value in arguments.items() if value is not None}
    if name == "local_shell":
        kept.pop("type", None)
        if not kept.get("env"):
            kept.pop("env", None)
    return name, _encode(kept).decode()


def fields_of(kind: str, arguments: str) -> dict[str, Any]:
    """The field of an item of type `kind` for the arguments that the model wrote. Arguments that
    cannot be read ask for nothing.
    """
    given = read_object(arguments or "{}") or {}
    name, field = _FIELDS[kind]
    if name == "shell":
        commands = _texts(given.get("commands", given.get("command")))
        limits = {key: _number(given.get(key)) for key in ("timeout_ms", "max_output_length")}
        return {field: {"commands": commands, **limits}}
    if name == "local_shell":
        command = given.get("command")
        words = ["bash", "-lc", command] if isinstance(command, str) else _texts(command)
        env = given.get("env")
        variables = env.items() if isinstance(env, dict) else ()
        action: dict[str, Any] = {"type": "exec", "command": words}
        action["env"] = {key: str(value) for key, value in variables}
        action["timeout_ms"] = _number(given.get("timeout_ms"))
        for key in ("user", "working_directory"):
            action[key] = given[key] if isinstance(given.get(key), str) else None
        return {field: action}
    operation = given.get("type")
    texts = {key: value for key in ("path", "diff") if isinstance(value := given.get(key), str)}
    known = operation if operation in _OPERATIONS else "update_file"
    told = {"type": known, "path": "", "diff": "", **texts}
    if known == "delete_file":
        del told["diff"]
    return {field: told}


def _texts(value: object) -> list[str]:
    given = [value] if isinstance(value, str) else value
    return [str(one) for one in given] if isinstance(given, list) else []


def _number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value)


def id_of(item: Item) -> str:
    """The id that a call and its result share; a result of `local_shell` has it in `id`."""
    return str(item.get("call_id") or item.get("id") or "")


def result_of(item: Item) -> str:
    """The text of a result: what was written, and how a command ended unless it went well."""
    output = item.get("output")
    if isinstance(output, list):
        return "\n".join(line for one in output if isinstance(one, dict) for line in _lines(one))
    return output if isinstance(output, str) and output else str(item.get("status") or "")


def _lines(command: Item) -> Iterator[str]:
    """The lines of the result of one command of a shell."""
    for stream in ("stdout", "stderr"):
        text = command.get(stream)
        if isinstance(text, str) and text:
            yield text.rstrip("\n")
    outcome = command.get("outcome")
    if not isinstance(outcome, dict):
        return
    if outcome.get("type") == "timeout":
        yield "[stopped at its time limit]"
    elif (code := outcome.get("exit_code")) not in (0, None):
        yield f"[exit code {code}]"
