"""Patterns of ECMA-262, written so that engines read them the same way."""

import json
import re
import shutil
import subprocess

import pytest

from gateway.schemas.pattern import MAX_CHARS, MAX_NESTING, HardPattern, written
from tests.fakes.grammar_walks import Walker

PATTERNS = [
    (r"^[^[\]]+$", ["a", "ab"], ["", "[", "a]"]),
    (r"[^]", ["a", "\n"], [""]),
    (r"^{.*}$", ["{}", "{a}"], ["a", "{"]),
    (r"^[a-z&&]$", ["a", "&"], ["&&", ""]),
    (r"^[a-z&&[^x]]$", ["a]", "x]", "&]"], ["a", "]"]),
    (r"^[~~+--]$", ["~", "+", ",", "-"], ["a", "."]),
    (r"a{,3}", ["a{,3}"], ["aaa"]),
    (r"^a{2}$", ["aa"], ["a", "a{2}"]),
    (r"mid", ["a mid b", "mid"], ["mi"]),
    (r"^ab", ["abc"], ["cab"]),
    (r"yz$", ["xyz"], ["yzx"]),
    (r"^a|b$", ["ax", "xb"], ["xa"]),
    (r"^$|^x$", ["", "x"], ["xx"]),
    (r"(?:^|,)x(?:,|$)", ["x", "a,x", "x,b"], ["ax"]),
    (r"^\/\@\-\_$", ["/@-_"], ["/@-"]),
    (r"^\u0041\x42\cA$", ["AB\x01"], ["AB"]),
    (r"^[\b]$", ["\b"], ["b"]),
    (r"^[\w-]+$", ["a-_9"], ["ä", " "]),
    (r"^\d+$", ["123"], ["\u0663"]),
    (r"^[\d-z]$", ["1", "-", "z"], ["a"]),
    (r"^\S\s$", ["a ", "a\u00a0"], ["aa", "  "]),
    (r"^(?<year>\d{4})$", ["2026"], ["26"]),
    (r"^x*?$", ["", "xx"], ["y"]),
    (r"^.$", ["a", "ü"], ["\n", "\u2028"]),
]


@pytest.mark.parametrize(("pattern", "right", "wrong"), PATTERNS)
def test_it_means_the_same(pattern: str, right: list[str], wrong: list[str]) -> None:
    """A schema means the same to an engine of another dialect, which also gets it as the whole
    string.
    """
    text = written(pattern).text
    inner = re.compile(text.removeprefix("^").removesuffix("$"))
    assert text.startswith("^")
    assert text.endswith("$")
    for value in right:
        assert inner.fullmatch(value), (text, value)
    for value in wrong:
        assert not inner.fullmatch(value), (text, value)


@pytest.mark.parametrize(("pattern", "right", "wrong"), PATTERNS)
def test_javascript_agrees(pattern: str, right: list[str], wrong: list[str]) -> None:
    """The cases above are what ECMA-262 says."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script = (
        "const [p, ...v] = process.argv.slice(1); console.log(v.map(x => new RegExp(p).test(x)))"
    )
    made = subprocess.run(
        [node, "-e", script, "--", pattern, *right, *wrong],
        capture_output=True,
        check=True,
        text=True,
        timeout=300,
    )
    found = re.findall("true|false", made.stdout)
    assert found == ["true"] * len(right) + ["false"] * len(wrong)


def test_engines_read_it() -> None:
    """Engines refuse none of the patterns."""
    walker = Walker()
    for pattern, _, _ in PATTERNS:
        schema = json.dumps({"type": "string", "pattern": written(pattern).text})
        assert not walker.refusal(schema), pattern


@pytest.mark.parametrize(
    "pattern",
    [
        r"^(?!a)b",
        r"(?<=a)b",
        r"\bword",
        r"(a)\1",
        r"(?<n>a)\k<n>",
        r"(?i)a",
        r"a^b",
        r"(a",
        r"a)",
        r"[a",
        r"[]",
        r"[z-a]",
        r"*a",
        r"a{3,2}",
        r"\ud83d",
        "a\\",
        "a" * (MAX_CHARS + 1),
        "(" * (MAX_NESTING + 2) + ")" * (MAX_NESTING + 2),
    ],
)
def test_what_cannot_be_followed_is_named(pattern: str) -> None:
    """What cannot be followed is named, in words for the client."""
    with pytest.raises(HardPattern, match=r"\w+ \w+"):
        written(pattern)


def test_a_simple_pattern_takes_the_lengths_in() -> None:
    """The intersection with a length takes engines too much work."""
    assert written("^[a-z][a-z0-9-]*$", 3, 253).text == r"^[a-z][a-z0-9\-]{2,252}$"
    assert written("^[a-z]+@[a-z]+$", 0, 253).text == "^[a-z]+@[a-z]+$"
