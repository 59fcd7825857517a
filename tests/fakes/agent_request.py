"""Requests of the form that agent clients send: a long stable system text, many tools, and a
history that grows by a tool call and its result.
"""

from typing import Any

_VERBS = ("read", "write", "search", "list", "move", "summarise", "schedule", "notify")
_NOUNS = ("file", "note")

_RULES = (
    "Work step by step and say what you do before you do it. Prefer the smallest change that "
    "solves the problem. Never invent the content of a file that you have not read. When a "
    "command fails, read its output, name the cause and try the next likely remedy. "
)
_GUIDANCE = (
    "Call this when the user's request needs it and no cheaper way is left. Give absolute paths. "
    "The result is JSON with the fields `ok`, `output` and `error`; long outputs are cut in the "
    "middle and the cut is marked. Do not call it twice with the same arguments in one turn; if "
    "the first result is not enough, change the arguments or ask the user. "
)


def agent_tools() -> list[dict[str, Any]]:
    """Sixteen tools, about 40 KB of JSON."""
    return [_tool(f"{verb}_{noun}", verb, noun) for verb in _VERBS for noun in _NOUNS]


def first_turn(model: str, question: str = "run echo hello") -> dict[str, Any]:
    """The first call of a turn: system, user, tools, streamed, a huge `max_tokens`."""
    system = f"You are a careful agent at work on somebody's machine.\n{_RULES * 20}"
    return {
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ],
        "model": model,
        "max_tokens": 65536,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": agent_tools(),
    }


def after_tool_result(model: str) -> dict[str, Any]:
    """The second call of the same turn: the first one's history, a tool call and its result."""
    body = first_turn(model)
    call = {
        "id": "call_17",
        "type": "function",
        "function": {"name": "read_file", "arguments": '{"path":"/tmp/hello"}'},
    }
    body["messages"] += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {
            "role": "tool",
            "name": "read_file",
            "content": '{"ok": true, "output": "hello", "error": null}',
            "tool_call_id": "call_17",
        },
    ]
    return body


def title_call(model: str) -> dict[str, Any]:
    """An auxiliary call: not streamed, no tools, no `max_tokens`."""
    return {
        "messages": [
            {"role": "system", "content": "Give a short title to the conversation that follows."},
            {"role": "user", "content": "User: third turn please\n\nAssistant: here it is"},
        ],
        "model": model,
        "temperature": 0.3,
    }


def _tool(name: str, verb: str, noun: str) -> dict[str, Any]:
    path = {"type": "string", "description": f"Absolute path of the {noun}. {_GUIDANCE}"}
    mode = {"type": "string", "enum": ["fast", "safe"], "description": _GUIDANCE}
    limit = {"type": "integer", "minimum": 1, "description": f"At most so many. {_GUIDANCE}"}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{verb.capitalize()} a {noun} for the user. {_GUIDANCE * 3}",
            "parameters": {
                "type": "object",
                "properties": {"path": path, "mode": mode, "limit": limit},
                "required": ["path"],
            },
        },
    }
