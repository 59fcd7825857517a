"""What the types that check requests cannot say of some fields, though the checks do.

Owns the schemas that stand in the description instead of the derived ones. Must not know paths.
"""

from typing import Any, Final, get_args

from gateway.api.chat_request import Role

_Schema = dict[str, Any]

_NAME: Final[_Schema] = {"type": "string", "minLength": 1}
_TEXT: Final[_Schema] = {"type": "string"}
_NULL: Final[_Schema] = {"type": "null"}


def _object(required: tuple[str, ...] = (), **properties: _Schema) -> _Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


_TOKEN_ID: Final[_Schema] = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
_IDS: Final[_Schema] = {"type": "array", "items": _TOKEN_ID, "minItems": 1}
_SEVERAL: Final[_Schema] = {"type": "array", "minItems": 1, "maxItems": 64}

_PROMPT: Final[_Schema] = {
    "anyOf": [_NAME, _IDS, {**_SEVERAL, "items": _NAME}, {**_SEVERAL, "items": _IDS}]
}

_TOOL: Final[_Schema] = _object(
    ("function",), type={"const": "function"}, function=_object(("name",), name=_NAME)
)
_TOOLS: Final[_Schema] = {"anyOf": [{"type": "array", "items": _TOOL}, _NULL]}

_TOOL_CHOICE: Final[_Schema] = {
    "anyOf": [
        {"enum": ["none", "auto", "required", None]},
        _object(("function",), type={"const": "function"}, function=_object(("name",), name=_NAME)),
    ]
}

_PART: Final[_Schema] = {
    "anyOf": [
        _object(("type", "text"), type={"const": "text"}, text=_TEXT),
        _object(("type", "refusal"), type={"const": "refusal"}, refusal=_TEXT),
        _object(("type", "image_url"), type={"const": "image_url"}),
    ]
}

_RESPONSE_FORMAT: Final[_Schema] = {
    "anyOf": [
        _object(("type",), type={"enum": ["text", "json_object"]}),
        _object(
            ("type", "json_schema"),
            type={"const": "json_schema"},
            json_schema=_object(("schema",), schema={"type": "object"}),
        ),
        _NULL,
    ]
}

_BIAS: Final[_Schema] = {
    "anyOf": [
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]+$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        },
        _NULL,
    ]
}

REFINEMENTS: Final[dict[str, dict[str, _Schema]]] = {
    "ChatBody": {
        "tools": _TOOLS,
        "tool_choice": _TOOL_CHOICE,
        "response_format": _RESPONSE_FORMAT,
        "logit_bias": _BIAS,
    },
    "CompletionBody": {
        "prompt": _PROMPT,
        "response_format": {"anyOf": [_object(("type",), type={"const": "text"}), _NULL]},
        "logit_bias": _BIAS,
    },
    "MessageBody": {
        "role": {"enum": list(get_args(Role))},
        "content": {"anyOf": [_TEXT, {"type": "array", "items": _PART}, _NULL]},
    },
    "FunctionBody": {"name": _NAME},
    "TokenizeBody": {"tools": _TOOLS},
}
"""By the type's name and the field's."""
