"""The beginning of a call is the tokens that a model writes itself, and its end what it goes on."""

import re
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from gateway.output.tools import (
    apertus,
    deepseek,
    forced_opening,
    gemma,
    glm,
    harmony,
    hermes,
    kimi,
    kimi3,
    minimax,
    mistral,
    phi,
    pythonic,
    solar,
)
from tests.fakes.tokenizers import PATTERNS, designs, split_by
from tests.fakes.tool_answers import Call
from tests.gateway.output.tools.test_answers import joined, parser_of
from tests.gateway.output.tools.test_formats import TEMPLATES

RESTS = {
    "hermes": ' {"a": 1}}\n</tool_call>',
    "qwen3_coder": "<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "llama3_json": ' {"a": 1}}',
    "mistral": ' {"a": 1}}]',
    "deepseek_v3": '{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v4": '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "kimi_k2": '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>',
    "phi4_mini": ' {"a": 1}}]<|/tool_call|>',
    "function_gemma": "{a:1}<end_function_call>",
    "gemma4": "{a:1}<tool_call|>",
    "harmony": '{"a": 1}<|call|>',
    "muse_glimmer": '<atem:parameter name="a">1</atem:parameter>\n</atem:invoke>\n'
    "</atem:function_calls>",
    "minimax_m2": '<parameter name="a">1</parameter>\n</invoke>\n</minimax:tool_call>',
    "minimax_m3": f"{minimax.PREFIX}<a>1{minimax.PREFIX}</a>{minimax.PREFIX}</invoke>\n"
    f"{minimax.CLOSE_3}",
    "minimax_m1": ' {"a": 1}}\n</tool_calls>',
    "lfm2": "(a=1)]<|tool_call_end|>",
    "apertus": ' {"a": 1}}]<|tools_suffix|>',
    "nemotron": ' {"a": 1}}]</TOOLCALL>',
    "cohere": ' {"a": 1}}\n]<|END_ACTION|>',
    "hy3": "<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>1"
    "</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
    "kimi_k3": '<|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>",
    "minicpm5": '"><param name="a">1</param></function>',
    "solar_open": '{"a": 1}<|tool_call:end|><|calls|>',
    "gigachat": ' {"a": 1}}<|message_sep|>',
    "glm": "<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
}
TOKENS = (
    hermes.OPEN, hermes.CLOSE, *glm.GLM[2:-1],
    mistral.MARKER, mistral.ARGS, *deepseek.V3, "｜DSML｜",
    kimi.SECTION, kimi.END_SECTION, kimi.CALL, kimi.ARGUMENTS, kimi.END_CALL,
    phi.OPEN, phi.CLOSE, *gemma.V3, *gemma.V4, pythonic.OPEN, pythonic.CLOSE,
    harmony.CHANNEL, harmony.MESSAGE, harmony.CONSTRAIN, harmony.CALL,
    minimax.OPEN, minimax.CLOSE, minimax.PREFIX, apertus.OPEN, apertus.CLOSE,
    phi.NEMOTRON_OPEN, phi.NEMOTRON_CLOSE, phi.COHERE_OPEN, phi.COHERE_CLOSE,
    phi.GIGACHAT_OPEN, phi.GIGACHAT_CLOSE, kimi3.OPEN, kimi3.CLOSE, kimi3.SEP,
    solar.CALLS, solar.CALL, solar.NAME, solar.ARGUMENTS, solar.END_CALL, solar.END_CALLS,
    *glm.HY, glm.HY_SECTION, glm.HY_END_SECTION,
)  # fmt: skip
"""The markup that the models of these formats have as tokens of their own."""
SPACED = (
    '<｜DSML｜ parameter name="a" string="false">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n'
    "</｜DSML｜ calls>"
)
"""V4.1's tags."""
CASES = [
    *((name, template, RESTS[name]) for name, template in TEMPLATES.items()),
    ("deepseek_v4", "<｜DSML｜ calls>", SPACED),
    ("mistral", "[TOOL_CALLS] [ARGS]", '[ARGS]{"a": 1}'),
    (
        "qwen3_coder",
        "<seed:tool_call>",
        RESTS["qwen3_coder"].replace("tool_call", "seed:tool_call"),
    ),
    ("qwen3_coder", "<function=f>{}</function>", '>{"a": 1}</function>'),
    ("deepseek_v3", "```json <｜tool▁calls▁begin｜>", '{"a": 1}\n```<｜tool▁call▁end｜>'),
]
BUILTIN = Path(__file__).parents[4] / "config" / "builtin" / "herma-tiny" / "tokenizer.json"
CALLS_OF_G: list[list[str | Call]] = [[("g", '{"a": 1}')], [("g", '{"a": "1"}')]]
"""A value that is written as text is of a type of its schema, which these tools lack."""


def greedy_tokenizer(sources: tuple[str, ...], text: str) -> Tokenizer:
    """One whose tokens are all that `sources` leave in one piece of `text`."""
    between = re.split("|".join(map(re.escape, TOKENS)), text)
    tokenizer = split_by(sources, between, vocab_size=1_000)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in TOKENS])
    return tokenizer


def read(name: str, opening: str, rest: str) -> list[str | Call]:
    """The texts and calls that `rest` gives, character by character, after an opening."""
    parser = parser_of(name)
    parser.begin(opening)
    events = [event for char in rest for event in parser.push(char)]
    return joined(events + parser.flush())


@pytest.mark.parametrize("sources", PATTERNS)
@pytest.mark.parametrize(("name", "template", "rest"), CASES)
def test_an_opening_ends_where_a_token_does(
    name: str, template: str, rest: str, sources: tuple[str, ...]
) -> None:
    """Whatever a tokenizer joins, the opening's tokens are the first of those of the whole call:
    one that ends amid a token of the call is followed by something that no model has learned.
    """
    one = forced_opening(name, ("get_weather",), template)
    some = forced_opening(name, ("get_weather", "g"), template)
    assert one
    assert some
    tokenizer = greedy_tokenizer(sources, one.text + rest)
    whole = tokenizer.encode(one.text + rest).tokens
    for opening in (one, some):
        begun = tokenizer.encode(opening.text).tokens
        assert whole[: len(begun)] == begun


@pytest.mark.parametrize("names", [("get_weather",), ("get_weather", "g")], ids=["one", "any"])
@pytest.mark.parametrize("tokenizer", [Tokenizer.from_file(str(BUILTIN)), *designs().values()])
def test_it_does_so_in_tokenizers_of_all_designs(
    tokenizer: Tokenizer, names: tuple[str, ...]
) -> None:
    """The built-in model's own, and such as no expression cuts."""
    opening = forced_opening("hermes", names, "")
    named = forced_opening("hermes", names[:1], "")
    assert opening
    assert named
    whole = tokenizer.encode(named.text + RESTS["hermes"]).ids
    begun = tokenizer.encode(opening.text).ids
    assert whole[: len(begun)] == begun


@pytest.mark.parametrize(("name", "template", "rest"), CASES)
def test_a_call_goes_on_behind_its_opening(name: str, template: str, rest: str) -> None:
    """Whatever the model writes behind the opening of a call to `g` is arguments of that call."""
    opening = forced_opening(name, ("g",), template, num_calls=3)
    assert opening
    assert opening.name == "g"
    assert read(name, opening.text, rest) in CALLS_OF_G


@pytest.mark.parametrize(("name", "template", "rest"), CASES)
def test_a_required_call_may_be_of_any_tool(name: str, template: str, rest: str) -> None:
    """With several tools the opening ends where the name begins, and the model writes that too."""
    some = forced_opening(name, ("f", "g"), template)
    one = forced_opening(name, ("g",), template)
    assert some
    assert one
    assert some.name == ""
    assert one.text.startswith(some.text)
    assert read(name, some.text, one.text.removeprefix(some.text) + rest) in CALLS_OF_G


def test_a_name_that_no_format_can_write_is_not_forced() -> None:
    """Quotes, brackets or spaces in a name would break out of the opening."""
    assert forced_opening("hermes", ('f", "x": "',), "") is None
    assert forced_opening("hermes", ("<|im_end|>",), "") is None
