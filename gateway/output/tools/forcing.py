"""Forced calls: the prompt ends with the beginning of a tool call, so that the model calls a tool.

Owns how calls begin in each format. The model can only continue the call, and the parser starts
behind the same text. This is as exact as a format allows without constrained sampling, and costs
nothing. Markup and the tool's name are separate, so that no name can forge a turn. Every beginning
ends at a token boundary in all tokenizers, because no model has learned what follows half a token.
Must not know tokens.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

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
    minicpm,
    minimax,
    mistral,
    muse,
    phi,
    pythonic,
    qwen_coder,
    solar,
)
from gateway.output.tools.grammar import is_name


class Opening(NamedTuple):
    """The beginning of a call. `name` stands between the two pieces of markup; it may be empty.
    `head` is the head of a message in front, of which no reader knows.
    """

    before: str
    name: str = ""
    after: str = ""
    head: str = ""

    @property
    def text(self) -> str:
        return self.before + self.name + self.after


class _Beginning(NamedTuple):
    """The text before any name, further text before a given name, and the text after the name."""

    of_any: str
    before: str = ""
    after: str = ""


def forced_opening(
    tool_format: str, names: tuple[str, ...], template: str, num_calls: int = 0
) -> Opening | None:
    """How a call begins in this format: to the tool named in `names` if it is the only one, else to
    any. None if the format cannot write the name. `template` distinguishes versions of a format;
    `num_calls` is how many calls the conversation has so far.
    """
    beginning = _BEGINNINGS[tool_format](template, num_calls)
    head = _HEADS.get(tool_format, "")
    if len(names) != 1:
        return Opening(beginning.of_any, head=head.format("user"))
    if not is_name(names[0].replace(" ", "_")):
        return None
    before = beginning.of_any + beginning.before
    return Opening(before, names[0], beginning.after, head.format(names[0]))


def _object(opener: str, arguments: str = "arguments") -> _Beginning:
    return _Beginning(f'{opener}{{"name":', ' "', f'", "{arguments}":')


def _mistral(template: str, _: int) -> _Beginning:
    is_named = mistral.ARGS in template
    return _Beginning(mistral.MARKER) if is_named else _object(f"{mistral.MARKER} [")


def _deepseek(template: str, _: int) -> _Beginning:
    tags = deepseek.V3
    if "```json" in template:
        return _Beginning(f"{tags.section}{tags.call}function{tags.sep}", "", "\n```json\n")
    return _Beginning(tags.section + tags.call, "", tags.sep)


def _dsml(template: str, _: int) -> _Beginning:
    if dsml.SECTION_41.strip("<>") in template:
        return _Beginning(f"{dsml.SECTION_41}\n{dsml.INVOKE_41}", "", '">\n')
    section = dsml.SECTIONS[dsml.SECTIONS[1].strip("<>") in template]
    return _Beginning(f"{section}\n{dsml.INVOKE}", "", '">\n')


def _kimi(_: str, num_calls: int) -> _Beginning:
    any_call, dot = _apart(f"{kimi.SECTION}{kimi.CALL}{kimi.PREFIX}")
    return _Beginning(any_call, dot, f":{num_calls}{kimi.ARGUMENTS}")


def _qwen_coder(template: str, _: int) -> _Beginning:
    is_seed = qwen_coder.SEED_OPEN in template
    any_call, equals = _apart(
        f"{qwen_coder.SEED_OPEN if is_seed else hermes.OPEN}\n{qwen_coder.FUNCTION}"
    )
    if hermes.OPEN not in template and not is_seed and "</function>" in template:
        # Functionary's format, whose arguments are JSON.
        return _Beginning(qwen_coder.FUNCTION[:-1], "=")
    return _Beginning(any_call, equals, ">\n")


def _gemma(tags: gemma.GemmaTags) -> _Beginning:
    any_call, colon = _apart(f"{tags.open}{gemma.PREFIX}")
    return _Beginning(any_call, colon)


def _harmony(_template: str, _: int) -> _Beginning:
    any_call, dot = _apart(f"{harmony.CHANNEL}commentary to={harmony.PREFIX}")
    return _Beginning(any_call, dot, f" {harmony.CONSTRAIN}json{harmony.MESSAGE}")


def _invoke(opening: str, invoke: str, after: str) -> _Beginning:
    return _Beginning(f"{opening}\n{invoke}", "", after)


def _cohere(_template: str, _: int) -> _Beginning:
    start = f'{phi.COHERE_OPEN}[\n    {{"tool_call_id": "0", "tool_name":'
    return _Beginning(start, ' "', '", "parameters":')


def _solar(_template: str, num_calls: int) -> _Beginning:
    return _Beginning(solar.CALLS + solar.CALL, f"call_{num_calls}{solar.NAME}", solar.ARGUMENTS)


def _apart(before_name: str) -> tuple[str, str]:
    """The text without its last character, and the last character, which tokenizers join with the
    name.
    """
    return before_name[:-1], before_name[-1]


_BEGINNINGS: Final[Mapping[str, Callable[[str, int], _Beginning]]] = {
    "hermes": lambda _template, _calls: _object(f"{hermes.OPEN}\n"),
    "qwen3_coder": _qwen_coder,
    "llama3_json": lambda _template, _calls: _object("", "parameters"),
    "mistral": _mistral,
    "deepseek_v3": _deepseek,
    "deepseek_v4": _dsml,
    "kimi_k2": _kimi,
    "glm": lambda _template, _calls: _Beginning(glm.GLM.open),
    "hy3": lambda _template, _calls: _Beginning(
        f"{glm.HY_SECTION}\n{glm.HY.open}", "", f"{glm.HY.behind_name}\n"
    ),
    "kimi_k3": lambda _template, _calls: _Beginning(
        f"{kimi3.CALLS}{kimi3.OPEN}call", ' tool="', f'" index="1"{kimi3.SEP}'
    ),
    "minicpm5": lambda _template, _calls: _Beginning(minicpm.FUNCTION),
    "solar_open": _solar,
    "gigachat": lambda _template, _calls: _object(phi.GIGACHAT_OPEN),
    "phi4_mini": lambda _template, _calls: _object(f"{phi.OPEN}["),
    "function_gemma": lambda _template, _calls: _gemma(gemma.V3),
    "gemma4": lambda _template, _calls: _gemma(gemma.V4),
    "harmony": _harmony,
    "minimax_m2": lambda _template, _calls: _invoke(minimax.OPEN, minimax.INVOKE, '">\n'),
    "muse_glimmer": lambda _template, _calls: _invoke(muse.OPEN, muse.INVOKE, '">\n'),
    "minimax_m3": lambda _template, _calls: _invoke(
        minimax.OPEN_3, minimax.PREFIX + minimax.INVOKE, '">'
    ),
    "minimax_m1": lambda _template, _calls: _object(f"{minimax.OPEN_1}\n"),
    "lfm2": lambda _template, _calls: _Beginning(pythonic.OPEN, "["),
    "apertus": lambda _template, _calls: _Beginning(f'{apertus.OPEN}[{{"', "", '":'),
    "nemotron": lambda _template, _calls: _object(f"{phi.NEMOTRON_OPEN}["),
    "cohere": _cohere,
}

_HEADS: Final = {"muse_glimmer": " to={}<|message|>"}
"""The head of the message in which a call stands: its recipient is the function."""
