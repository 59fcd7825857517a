"""Tool calls as a grammar, so that a model can write no other.

Owns the grammars (llguidance's Lark) of the formats whose arguments are JSON behind the name; those
are Hermes' and Qwen's. Must not know tokens beyond the ids of the two tags, nor requests.
"""

import json
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gateway.output.tools import hermes
from gateway.output.tools.formats import ToolFormat

_TAGS: Final = {"hermes": (hermes.OPEN, hermes.CLOSE)}
"""The formats that have grammars, with the tags around a call."""

ARGUMENTS: Final = "arguments_"
"""The rule of a tool's arguments, with the tool's index behind it. Engines name it in errors."""

_MORE: Final = '("\\n"? call)*'


class CallTags(NamedTuple):
    """The tokens of the two tags. A tag of several tokens could not be told from text."""

    open_id: int
    close_id: int


def call_tags(
    tool_format: ToolFormat | None, lone_id: Callable[[str], int | None]
) -> CallTags | None:
    """The tags of the format; None if it has no grammar. `lone_id` is the token of a text."""
    if tool_format is None or tool_format.name not in _TAGS:
        return None
    open_id, close_id = map(lone_id, _TAGS[tool_format.name])
    return None if open_id is None or close_id is None else CallTags(open_id, close_id)


class CallableTool(NamedTuple):
    """A tool that the model may call; `schema` is the JSON of its parameters' schema."""

    name: str
    schema: str


def forced_calls(tools: Sequence[CallableTool], tags: CallTags, begun: str) -> str:
    """One call or more and nothing else, of which the prompt has `begun` the first: not at all,
    up to the name's key, or up to the arguments of the only tool.
    """
    if not begun:
        return _grammar(f"call {_MORE}", tools, tags)
    if begun.rstrip().endswith('"arguments":'):
        return _grammar(f'" "? arguments_0 end {_MORE}', tools, tags)
    return _grammar(f"named end {_MORE}", tools, tags)


def optional_calls(tools: Sequence[CallableTool], tags: CallTags, content: str | None) -> str:
    """Text, and calls anywhere in it; or with `content`, a JSON schema, either that or calls."""
    if content is None:
        return _grammar("TEXT (call TEXT)*", tools, tags) + "TEXT: /(.|\\n)*/\n"
    return _grammar(f"content | call {_MORE}", tools, tags) + f"content: %json {content}\n"


def _grammar(start: str, tools: Sequence[CallableTool], tags: CallTags) -> str:
    """What follows a name's key is a rule of its own, because a prompt may end there."""
    names = " | ".join(f"tool_{at}" for at in range(len(tools)))
    key = _quoted('{"name":')
    lines = [
        f"start: {start}",
        f'call: <[{tags.open_id}]> "\\n"? {key} named end',
        f'end: "}}" "\\n"? <[{tags.close_id}]>',
        f'named: " "? ({names})',
    ]
    for at, tool in enumerate(tools):
        before = _quoted(f'{json.dumps(tool.name, ensure_ascii=False)}, "arguments":')
        lines.append(f'tool_{at}: {before} " "? {ARGUMENTS}{at}')
        lines.append(f"{ARGUMENTS}{at}: %json {tool.schema}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A literal of the grammar; its escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False)
