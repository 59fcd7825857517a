"""Custom tools, which take a text instead of JSON, as functions of one text.

Owns that form, in both directions. The tool's grammar is stated to the model in the description; it
is not enforced. Must not know the APIs that have such tools.
"""

from typing import Any, Final

import msgspec

from protocol.reading import read_object

CUSTOM_INPUT: Final = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}

_encode: Final = msgspec.json.Encoder().encode


def custom_function(tool: dict[str, Any]) -> dict[str, Any]:
    """The description and parameters of a function for the custom tool, whose grammar is in
    `format` or, as in chats, in `format.grammar`.
    """
    texts = [tool.get("description")]
    form = tool.get("format")
    if isinstance(form, dict) and isinstance(form.get("grammar"), dict):
        form = form["grammar"]
    if isinstance(form, dict) and isinstance(form.get("definition"), str):
        texts.append(f"The input follows this {form.get('syntax')} grammar:\n{form['definition']}")
    description = "\n\n".join(text for text in texts if isinstance(text, str) and text)
    return {"description": description, "parameters": CUSTOM_INPUT}


def arguments_of(text: object) -> str:
    """The arguments of the function, as JSON, for the input of a custom tool."""
    return _encode({"input": text}).decode()


def input_of(arguments: str) -> str:
    """The text in the arguments of a custom tool; arguments of another form are the text."""
    text = _input_in(arguments)
    return arguments if text is None else text


def wrapped_input(arguments: str) -> str:
    """The arguments of the function for a call that a client sends back, with the arguments or with
    the text alone.
    """
    return arguments if _input_in(arguments) is not None else arguments_of(arguments)


def _input_in(arguments: str) -> str | None:
    text = (read_object(arguments) or {}).get("input")
    return text if isinstance(text, str) else None
