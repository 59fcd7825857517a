"""Chats in the shapes of other APIs, as some clients send them -> plain chats.

Owns tools without the wrapper `function` (the Responses API's form), custom tools and their calls,
messages of the time before tools (`function_call`, role `function`), parts by the names of the
other APIs, and the calls and results that are parts in Anthropic's. Cursor sends all of these to
/chat/completions (codex-proxy#707, codex-lb#833). Must not know templates, models, or deferred
tools.
"""

import operator
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from gateway.api.client_functions import function_fields
from gateway.api.content_parts import call_of, kind_of, parts_of, user_messages
from gateway.api.custom_tools import arguments_of, custom_function, wrapped_input
from gateway.api.json_body import cached_tools
from gateway.api.request import text_of_result

_ANTHROPIC_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
OTHER_PARTS: Final = frozenset(
    {
        "input_text", "output_text", "input_image", "input_file",
        "image", "document", "search_result", "tool_use", "tool_result",
    }
)  # fmt: skip
"""Types of parts of the Responses API and of Anthropic's."""

_encode: Final = msgspec.json.Encoder().encode

Fields = dict[str, Any]


def plain_chat(raw: Fields) -> tuple[Fields, dict[str, bool]]:
    """`raw` in the plain shape (itself, if it has that), and its custom tools by name: True for
    those without a wrapper. What is not of the right type stays as it is, for the checks behind
    this.
    """
    customs: dict[str, bool] = {}
    changed: Fields = {}
    tools = raw.get("tools")
    if isinstance(tools, list):
        plain = [_tool(tool, customs) for tool in tools]
        if any(new is not old for new, old in zip(plain, tools, strict=True)):
            objects = [tool for tool in plain if isinstance(tool, dict)]
            changed["tools"] = cached_tools(objects) if len(objects) == len(plain) else plain
    choice = raw.get("tool_choice")
    if isinstance(choice, dict) and (named := _choice(choice)) is not choice:
        changed["tool_choice"] = named
    messages = raw.get("messages")
    if isinstance(messages, list):
        spread = [one for at, each in enumerate(_with_tools(messages)) for one in _spread(each, at)]
        plain = [_message(message, customs) for message in spread]
        if len(plain) != len(messages) or any(map(operator.is_not, plain, messages)):
            changed["messages"] = plain
    return ({**raw, **changed} if changed else raw), customs


def _tool(tool: object, customs: dict[str, bool]) -> object:
    if not isinstance(tool, dict):
        return tool
    kind = tool.get("type") or "function"
    if kind == "custom" and "name" in tool and "input_schema" in tool:
        kind = "function"  # a tool of Anthropic's API
    if kind == "function" and "function" not in tool:
        fields = function_fields({**tool, "type": kind})
        if fields is None:
            return tool
        rest = {key: value for key, value in fields.items() if key == "defer_loading"}
        function = {key: value for key, value in fields.items() if key not in {"type", *rest}}
        return {"type": "function", "function": function, **rest}
    if kind != "custom":
        return tool
    inner = tool.get("custom")
    given = inner if isinstance(inner, dict) else tool
    name = given.get("name")
    if not isinstance(name, str) or not name:
        return tool
    customs[name] = given is tool
    function = {"name": name, **custom_function(given)}
    deferred = {"defer_loading": True} if tool.get("defer_loading") is True else {}
    return {"type": "function", "function": function, **deferred}


def _choice(choice: Fields) -> Fields | str:
    """The choice of one tool by name, or of several, as one of functions."""
    kind = choice.get("type")
    if (
        isinstance(kind, str)
        and kind in _ANTHROPIC_CHOICES
        and choice.keys() <= {"type", "disable_parallel_tool_use"}
    ):
        return _ANTHROPIC_CHOICES[kind]
    if kind in ("function", "custom", "tool") and not isinstance(choice.get("function"), dict):
        inner = choice.get("custom")
        given = inner if isinstance(inner, dict) else choice
        if "name" in given:
            return {"type": "function", "function": {"name": given["name"]}}
    if kind == "allowed_tools":
        nested = choice.get("allowed_tools")
        given = nested if isinstance(nested, dict) else choice
        tools = given.get("tools")
        if isinstance(tools, list):
            plain = [_choice(one) if isinstance(one, dict) else one for one in tools]
            is_plain = nested is given and all(
                new is old for new, old in zip(plain, tools, strict=True)
            )
            if not is_plain:
                fields = {"mode": given.get("mode", "auto"), "tools": plain}
                return {"type": "allowed_tools", "allowed_tools": fields}
    return choice


def _with_tools(messages: list[Any]) -> list[Any]:
    """`messages` with calls of functions as calls of tools, and their results as results of tools.
    These calls have no ids: each result belongs to the call before it.
    """
    if not any(isinstance(one, dict) and one.get("role") == "function" for one in messages):
        return messages
    found: list[Any] = []
    call_id = ""
    for at, message in enumerate(messages):
        one = message
        if isinstance(message, dict):
            rest = {key: value for key, value in message.items() if key != "function_call"}
            function = message.get("function_call")
            if isinstance(function, dict) and not message.get("tool_calls"):
                call_id = f"call_{at}"
                calls = [{"id": call_id, "type": "function", "function": function}]
                one = {**rest, "tool_calls": calls}
            elif message.get("role") == "function":
                one = {**rest, "role": "tool", "tool_call_id": call_id}
        found.append(one)
    return found


def _spread(message: object, at: int) -> Iterable[object]:
    """The messages for one whose calls or results are parts, as in Anthropic's API."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(content, list):
        return [message]
    where = f"messages[{at}].content"
    kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
    if message.get("role") in ("user", "tool") and "tool_result" in kinds:
        return user_messages(content, where, lambda part, _: _parts(part))
    if message.get("role") != "assistant" or "tool_use" not in kinds:
        return [message]
    calls = [
        call_of(part, f"{where}[{index}]")
        for index, (part, kind) in enumerate(zip(content, kinds, strict=True))
        if kind == "tool_use"
    ]
    rest = [part for part, kind in zip(content, kinds, strict=True) if kind != "tool_use"]
    given = message.get("tool_calls")
    earlier = given if isinstance(given, list) else []
    return [{**message, "content": rest or None, "tool_calls": [*earlier, *calls]}]


def _message(message: object, customs: Mapping[str, bool]) -> object:
    if not isinstance(message, dict):
        return message
    changed: Fields = {}
    calls, content = message.get("tool_calls"), message.get("content")
    if isinstance(calls, list):
        plain = [_call(call, customs) for call in calls]
        if any(new is not old for new, old in zip(plain, calls, strict=True)):
            changed["tool_calls"] = plain
    if message.get("role") == "tool" and not _is_content(content):
        changed["content"] = text_of_result(content)
    elif isinstance(content, list):
        parts = [new for part in content for new in _parts(part)]
        if len(parts) != len(content) or any(map(operator.is_not, parts, content)):
            changed["content"] = parts
    return {**message, **changed} if changed else message


def _call(call: object, customs: Mapping[str, bool]) -> object:
    """A call of a custom tool as one of a function. Cursor sends the text alone back as the
    arguments of a function.
    """
    if not isinstance(call, dict):
        return call
    custom, function = call.get("custom"), call.get("function")
    if isinstance(custom, dict):
        given = {"name": custom.get("name"), "arguments": arguments_of(custom.get("input"))}
        return {"id": call.get("id"), "type": "function", "function": given}
    name = function.get("name") if isinstance(function, dict) else None
    if isinstance(function, dict) and isinstance(name, str) and name in customs:
        arguments = function.get("arguments")
        if isinstance(arguments, str) and (text := wrapped_input(arguments)) != arguments:
            return {**call, "function": {**function, "arguments": text}}
    return call


def _is_content(content: object) -> bool:
    """Whether `content` is a valid content of a message. Some programs send the result of a tool as
    any JSON value.
    """
    if isinstance(content, list):
        return all(
            isinstance(part, str) or (isinstance(part, dict) and isinstance(kind_of(part), str))
            for part in content
        )
    return content is None or isinstance(content, str)


def _parts(part: object) -> list[Any]:
    """The parts of a chat for `part` of another API; a part of a chat is returned as it is."""
    kind = part.get("type") if isinstance(part, dict) else None
    is_other = kind is None or (isinstance(kind, str) and kind in OTHER_PARTS)
    read = parts_of(part) if is_other else None
    if read is None and kind in ("tool_use", "tool_result"):
        # A call or result in a wrong place.
        return [{"type": "text", "text": _encode(part).decode()}]
    return [part] if read is None else read
