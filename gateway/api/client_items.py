"""Items of the Responses API's own tools that a client runs (`shell`, `local_shell`, `apply_patch`)
-> calls of functions with those names, and their results.

A session that another server began has such items in its history. Owns their form. Must not know
messages or requests.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

_FIELDS: Final = {
    "shell_call": ("shell", "action"),
    "local_shell_call": ("local_shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
"""The tool and the field with its arguments, by the type of the item."""

CALLS: Final = _FIELDS.keys()
RESULTS: Final = frozenset(f"{kind}_output" for kind in _FIELDS)

_encode: Final = msgspec.json.Encoder().encode

Item = dict[str, Any]


def call_of(item: Item) -> tuple[str, str]:
    """The tool's name, and the arguments as JSON."""
    name, field = _FIELDS[item["type"]]
    given = item.get(field)
    return name, _encode(given if isinstance(given, dict) else {}).decode()


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
