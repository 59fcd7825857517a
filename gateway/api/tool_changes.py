"""Blocks of Anthropic's API by which tools come and go within a conversation.

Owns what a `tool_addition` and a `tool_removal` are in a chat: parts that load or withdraw a tool,
and the deferred tools that additions define. Claude Code and the SDKs' tool runner send them in
system messages. Must not know requests.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from gateway.api.deferred_tools import reference, withdrawal
from gateway.api.messages_tools import function_of, is_ours, own_form
from protocol.reading import objects_in

ADDITION: Final = "tool_addition"
REMOVAL: Final = "tool_removal"
CHANGES: Final = frozenset({ADDITION, REMOVAL})
_DEFINITION: Final = "tool_definition"

Block = dict[str, Any]


def part_of_change(block: Block) -> Block | None:
    """The part for a change; None for one of tools that a server would run."""
    tool = block.get("tool")
    if not isinstance(tool, dict):
        return None
    name: object = None
    if (definition := _own_definition(tool)) is not None:
        name = own_form(definition).get("name")
    elif tool.get("type") == "tool_reference":
        name = tool.get("name")
    if not isinstance(name, str) or not name:
        return None
    return reference(name) if block.get("type") == ADDITION else withdrawal(name)


def unread_change(block: Block) -> str | None:
    """The ignored part of a change; None if all of it is read."""
    if part_of_change(block) is not None:
        return None
    tool = block.get("tool")
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == _DEFINITION and isinstance(tool, dict) and isinstance(tool.get("definition"), dict):
        kind = tool["definition"].get("type")
    return f"{block.get('type')}: {kind}"


def defined_tools(
    blocks: Iterable[Block], where: str, *, may_defer: bool = True
) -> Iterator[Block]:
    """The functions that additions among the blocks define, deferred unless they may not be. Raises
    `ApiError` 400.
    """
    for at, block in enumerate(blocks):
        tool = block.get("tool") if block.get("type") == ADDITION else None
        if isinstance(tool, dict) and (definition := _own_definition(tool)) is not None:
            place = f"{where}[{at}].tool.definition"
            function = function_of(definition, place)
            yield {**function, "defer_loading": True} if may_defer else function


def defines(block: Block) -> bool:
    """Whether a change defines the tool that it adds."""
    tool = block.get("tool")
    return isinstance(tool, dict) and _own_definition(tool) is not None


def changes_in(block: Block) -> list[Block]:
    """The changes that a compaction has kept of what it replaced."""
    return [one for one in objects_in(block.get("tool_changes")) if str(one.get("type")) in CHANGES]


def _own_definition(tool: Block) -> Block | None:
    """The tool that is defined there, if the client runs it."""
    definition = tool.get("definition") if tool.get("type") == _DEFINITION else None
    return definition if isinstance(definition, dict) and is_ours(definition) else None
