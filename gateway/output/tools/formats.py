"""The formats of tool calls by name, and which one a model writes.

Owns each format's markers and tags, its ids, and the detection from a chat template. Must not know
how a format is read: that is in a file per format.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from gateway.output.tags import tag_overlap
from gateway.output.tools import (
    deepseek,
    dsml,
    gemma,
    glm,
    hermes,
    kimi,
    llama,
    mistral,
    phi,
    qwen_coder,
)
from gateway.output.tools.grammar import STRING_MARKS, CallSink, Read


def _hex_id(draw: Callable[[int], bytes]) -> str:
    return f"call_{draw(12).hex()}"


def _short_id(draw: Callable[[int], bytes]) -> str:
    return draw(5).hex()[: mistral.ID_CHARS]


class ToolFormat:
    """How a family of models writes calls.

    `markers` begin a section; they share their first character, which each has once. A `bare`
    marker counts only at the start of an answer. `ends` are tags that may be cut off behind a call.
    `tags` are all tags of the format.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[CallSink, str], Read[None]],
        markers: tuple[str, ...],
        *,
        ends: tuple[str, ...] = (),
        inner: tuple[str, ...] = (),
        bare: str = "",
        draw_id: Callable[[Callable[[int], bytes]], str] = _hex_id,
        keeps_ids: bool = False,
    ) -> None:
        self.name = name
        self.read = read
        self.markers = markers
        self.first = markers[0][0]
        self.marks = frozenset(self.first)
        self.ends = ends
        self.tags = (*markers, *ends, *inner)
        self.string_marks = STRING_MARKS | {tag[0] for tag in self.tags}
        self.bare = bare
        self.draw_id = draw_id
        self.keeps_ids = keeps_ids
        self._pattern = re.compile("|".join(map(re.escape, markers)))

    def find(self, text: str) -> re.Match[str] | None:
        return self._pattern.search(text) if self.first in text else None

    def overlap(self, text: str) -> int:
        """How many of the last characters of `text` could be the start of a marker."""
        if self.first not in text:
            return 0
        return max(tag_overlap(text, marker) for marker in self.markers)

    def is_end(self, text: str) -> bool:
        """Whether `text`, read behind a call, is the beginning of an end tag."""
        start = text.strip(" \n`")
        return any(end.startswith(start) for end in self.ends)


_ALL: Final = (
    ToolFormat("hermes", hermes.read, (hermes.OPEN,), ends=(hermes.CLOSE,)),
    ToolFormat(
        "qwen3_coder",
        qwen_coder.read,
        (hermes.OPEN, qwen_coder.FUNCTION),
        ends=(hermes.CLOSE,),
        inner=(qwen_coder.PARAMETER, qwen_coder.END_PARAMETER, qwen_coder.END_FUNCTION),
    ),
    ToolFormat("llama3_json", llama.read, (llama.PYTHON_TAG,), bare=llama.BARE),
    ToolFormat(
        "mistral",
        mistral.read,
        (mistral.MARKER,),
        inner=(mistral.CALL_ID, mistral.ARGS),
        draw_id=_short_id,
        keeps_ids=True,
    ),
    ToolFormat(
        "deepseek_v3",
        deepseek.read,
        (deepseek.V3.section, deepseek.V3.call),
        ends=(deepseek.V3.end_call, deepseek.V3.end_section),
        inner=(deepseek.V3.sep,),
    ),
    ToolFormat(
        "deepseek_v4",
        dsml.read,
        (*dsml.SECTIONS, deepseek.DSML.section),
        ends=(
            *dsml.END_SECTIONS,
            deepseek.DSML.end_call,
            deepseek.DSML.end_section,
        ),
        inner=(dsml.INVOKE, dsml.END_INVOKE, dsml.PARAMETER, dsml.END_PARAMETER),
    ),
    ToolFormat(
        "kimi_k2",
        kimi.read,
        (kimi.SECTION, kimi.CALL),
        ends=(kimi.END_CALL, kimi.END_SECTION),
        inner=(kimi.ARGUMENTS,),
        keeps_ids=True,
    ),
    ToolFormat(
        "glm",
        glm.read,
        (glm.OPEN,),
        ends=(glm.CLOSE,),
        inner=(glm.KEY, glm.END_KEY, glm.VALUE, glm.END_VALUE),
    ),
    ToolFormat("phi4_mini", phi.read, (phi.OPEN,), ends=(phi.CLOSE,)),
    ToolFormat(
        "function_gemma", gemma.read, (gemma.OPEN,), ends=(gemma.CLOSE,), inner=(gemma.ESCAPE,)
    ),
)
TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {one.name: one for one in _ALL}

_SIGNS: Final = (
    ("｜DSML｜", "deepseek_v4"),
    ("<｜tool▁call", "deepseek_v3"),
    ("<|tool_call_argument_begin|>", "kimi_k2"),
    ("<arg_key>", "glm"),
    (gemma.OPEN, "function_gemma"),
    (phi.CLOSE, "phi4_mini"),
    ("<|/tool|>", "phi4_mini"),
    ("<function=", "qwen3_coder"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": ', "llama3_json"),
)
"""What templates contain, the clearest signs first."""


def detect_tool_format(template: str) -> ToolFormat:
    """The format of the model with this chat template; Hermes' if it shows no sign of any, because
    models without a format of their own are mostly prompted for that.
    """
    name = next((name for sign, name in _SIGNS if sign in template), "hermes")
    return TOOL_FORMATS[name]
