"""The formats of tool calls by name, and which one a model writes.

Owns each format's markers and tags, its ids, and the detection from a chat template. Must not know
how a format is read: that is in a file per format.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from gateway.output.tags import tag_overlap
from gateway.output.tools import (
    apertus,
    deepseek,
    dsml,
    gemma,
    glm,
    harmony,
    hermes,
    kimi,
    kimi3,
    llama,
    minicpm,
    minimax,
    mistral,
    muse,
    phi,
    pythonic,
    qwen_coder,
    solar,
)
from gateway.output.tools.grammar import STRING_MARKS, CallSink, Read


def _hex_id(draw: Callable[[int], bytes]) -> str:
    return f"call_{draw(12).hex()}"


def _short_id(draw: Callable[[int], bytes]) -> str:
    return draw(5).hex()[: mistral.ID_CHARS]


class ToolFormat:
    """How a family of models writes calls.

    `markers` begin a section; they share their first character. A `bare` marker, one of these
    characters, counts only at the start of an answer. `ends` are tags that may be cut off behind a
    call. `tags` are all tags of the format. With `number_id` ids are of the name of a function and
    the number of the call in the conversation.
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
        number_id: Callable[[str, int], str] | None = None,
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
        self.number_id = number_id
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
        (hermes.OPEN, qwen_coder.SEED_OPEN, qwen_coder.FUNCTION),
        ends=(hermes.CLOSE, qwen_coder.SEED_CLOSE),
        inner=(qwen_coder.PARAMETER, qwen_coder.END_PARAMETER, qwen_coder.END_FUNCTION),
    ),
    ToolFormat(
        "llama3_json",
        llama.read,
        (llama.PYTHON_TAG, llama.PYTHON_START),
        ends=(llama.PYTHON_END,),
        bare=llama.BARE,
    ),
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
        (*dsml.SECTIONS, dsml.SECTION_41, deepseek.DSML.section),
        ends=(
            *dsml.END_SECTIONS,
            dsml.END_SECTION_41,
            deepseek.DSML.end_call,
            deepseek.DSML.end_section,
        ),
        inner=(
            dsml.INVOKE,
            dsml.END_INVOKE,
            dsml.PARAMETER,
            dsml.END_PARAMETER,
            dsml.INVOKE_41,
            dsml.END_INVOKE_41,
            dsml.PARAMETER_41,
            dsml.END_PARAMETER_41,
        ),
    ),
    ToolFormat(
        "kimi_k2",
        kimi.read,
        (kimi.SECTION, kimi.CALL),
        ends=(kimi.END_CALL, kimi.END_SECTION),
        inner=(kimi.ARGUMENTS,),
        keeps_ids=True,
        number_id=kimi.call_id,
    ),
    ToolFormat(
        "glm",
        glm.read,
        (glm.GLM.open,),
        ends=(glm.GLM.close,),
        inner=glm.GLM[2:-1],
    ),
    ToolFormat(
        "hy3",
        glm.read_hy,
        (glm.HY_SECTION, glm.HY.open),
        ends=(glm.HY.close, glm.HY_END_SECTION),
        inner=glm.HY[2:],
    ),
    ToolFormat(
        "kimi_k3",
        kimi3.read,
        (kimi3.CALLS,),
        ends=(kimi3.END_CALLS,),
        inner=(kimi3.CALL, kimi3.END_MESSAGE),
    ),
    ToolFormat(
        "minicpm5",
        minicpm.read,
        (minicpm.FUNCTION,),
        ends=(minicpm.END_FUNCTION,),
        inner=(
            minicpm.PARAMETER,
            minicpm.END_PARAMETER,
            minicpm.QUOTED,
            minicpm.END_QUOTED,
        ),
    ),
    ToolFormat(
        "solar_open",
        solar.read,
        (solar.CALLS,),
        ends=(solar.END_CALL, solar.END_CALLS),
        inner=(solar.CALL, solar.NAME, solar.ARGUMENTS),
        keeps_ids=True,
    ),
    ToolFormat(
        "gigachat",
        phi.read,
        (phi.GIGACHAT_OPEN,),
    ),
    ToolFormat("phi4_mini", phi.read, (phi.OPEN,), ends=(phi.CLOSE,)),
    ToolFormat(
        "function_gemma", gemma.read, (gemma.OPEN,), ends=(gemma.CLOSE,), inner=(gemma.ESCAPE,)
    ),
    ToolFormat(
        "gemma4", gemma.read, (gemma.V4.open,), ends=(gemma.V4.close,), inner=(gemma.V4.escape,)
    ),
    ToolFormat(
        "harmony",
        harmony.read,
        (harmony.CHANNEL,),
        ends=(harmony.CALL, harmony.END),
        inner=(harmony.START, harmony.MESSAGE, harmony.CONSTRAIN),
    ),
    ToolFormat(
        "minimax_m2",
        minimax.read,
        (minimax.OPEN,),
        ends=(minimax.CLOSE,),
        inner=(minimax.INVOKE, minimax.END_INVOKE, minimax.PARAMETER, minimax.END_PARAMETER),
    ),
    ToolFormat(
        "muse_glimmer",
        muse.read,
        (muse.OPEN,),
        ends=(muse.CLOSE, muse.END_MESSAGE, muse.END_TURN),
        inner=(
            harmony.START,
            harmony.MESSAGE,
            muse.INVOKE,
            muse.END_INVOKE,
            muse.PARAMETER,
            muse.END_PARAMETER,
        ),
    ),
    ToolFormat(
        "minimax_m3",
        minimax.read_3,
        (minimax.OPEN_3,),
        ends=(minimax.CLOSE_3,),
        inner=(minimax.PREFIX,),
    ),
    ToolFormat("minimax_m1", minimax.read_1, (minimax.OPEN_1,), ends=(minimax.CLOSE_1,)),
    ToolFormat("lfm2", pythonic.read, (pythonic.OPEN,), ends=(pythonic.CLOSE,)),
    ToolFormat("apertus", apertus.read, (apertus.OPEN,), ends=(apertus.CLOSE,)),
    ToolFormat("nemotron", phi.read, (phi.NEMOTRON_OPEN,), ends=(phi.NEMOTRON_CLOSE,)),
    ToolFormat("cohere", phi.read, (phi.COHERE_OPEN,), ends=(phi.COHERE_CLOSE,)),
)
TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {one.name: one for one in _ALL}

_SIGNS: Final = (
    ("｜DSML｜", "deepseek_v4"),
    ("<｜tool▁call", "deepseek_v3"),
    ("<|tool_call_argument_begin|>", "kimi_k2"),
    ("<arg_key>", "glm"),
    ("'<arg_key{}>'", "hy3"),
    ("'<|open|>'", "kimi_k3"),
    (minicpm.FUNCTION, "minicpm5"),
    (solar.ARGUMENTS, "solar_open"),
    (phi.GIGACHAT_OPEN, "gigachat"),
    (gemma.OPEN, "function_gemma"),
    (gemma.V4.open, "gemma4"),
    ("<|channel|>commentary", "harmony"),
    (muse.OPEN, "muse_glimmer"),
    ("]<]minimax[>[", "minimax_m3"),
    (minimax.OPEN, "minimax_m2"),
    (pythonic.OPEN, "lfm2"),
    ("<|tool_list_start|>", "lfm2"),
    ("List of tools: [", "lfm2"),
    (apertus.OPEN, "apertus"),
    (phi.NEMOTRON_OPEN, "nemotron"),
    (phi.COHERE_OPEN, "cohere"),
    (phi.CLOSE, "phi4_mini"),
    ("<|/tool|>", "phi4_mini"),
    (phi.OPEN, "phi4_mini"),
    (qwen_coder.SEED_OPEN, "qwen3_coder"),
    ("<function=", "qwen3_coder"),
    ("[TOOL_CALLS]", "mistral"),
    (minimax.OPEN_1, "minimax_m1"),
    ("<tool_call>", "hermes"),
    (llama.PYTHON_TAG, "llama3_json"),
    (llama.PYTHON_START, "llama3_json"),
)
"""Texts that templates of a format contain, the clearest signs first."""
_LLAMA_HEADS: Final = ("<|start_header_id|>", "<|header_start|>")
"""The beginnings of turns in templates of Llama 3 and 4."""
_SHOWS_TOOLS: Final = re.compile(r"\b(tools|tool_calls|functions)\b")


def detect_tool_format(template: str) -> ToolFormat:
    """The format of the model with this chat template; Hermes' if it shows no sign of any, because
    models without a format of their own are mostly prompted for that.
    """
    return TOOL_FORMATS[_sign_in(template) or "hermes"]


def is_known_format(template: str) -> bool:
    """False for a template that shows tools and no sign of a known format, so that `hermes` is a
    guess.
    """
    return _sign_in(template) is not None or _SHOWS_TOOLS.search(template) is None


def _sign_in(template: str) -> str | None:
    if (name := next((name for sign, name in _SIGNS if sign in template), None)) is not None:
        return name
    is_llama = '"parameters": ' in template and any(head in template for head in _LLAMA_HEADS)
    return "llama3_json" if is_llama else None
