"""Where the keys of a TOML text stand."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from config.places import Place, line_of, lines_of

NASTY = '''\
top = 1                                     # line 1
[gateway]
host = """
[models]
port = 3
\\""" """""
port = \'\'\'
  host = 1\'\'\'                              # 7, until here
"quoted.key" = 1
'literal # key' . "with \\u0061 dot" = 2     # 10
[[models]]
  name = "a # no comment"
  aliases = [                               # 13
    "one", # [[workers]]
    \'two]\',

    { deep = [[1, 2], [3,
      4]] },
  ]
  fallback = [{ provider = "p", params.set = { t = 1 }, model = "}" }, { provider = "q" }]
[models . alias_params . "one"]
set = { a = "=" }
[[ models ]]                                # 23
name = "b"
[models.alias_params.x]
drop = []
[[models.fallback]]
provider = "r"
[[models.fallback]]
provider = "s"
[providers."a b".models.'x/y'.price]
input = 1
[providers."a b"]
when = 1979-05-27 07:32:00
base_url = "u"
'''

EXPECTED: dict[Place, int] = {
    ("top",): 1,
    ("gateway",): 2,
    ("gateway", "host"): 3,
    ("gateway", "port"): 7,
    ("gateway", "quoted.key"): 9,
    ("gateway", "literal # key"): 10,
    ("gateway", "literal # key", "with a dot"): 10,
    ("models",): 11,
    ("models", 0): 11,
    ("models", 0, "name"): 12,
    ("models", 0, "aliases"): 13,
    ("models", 0, "aliases", 0): 14,
    ("models", 0, "aliases", 1): 15,
    ("models", 0, "aliases", 2): 17,
    ("models", 0, "aliases", 2, "deep", 1): 17,
    ("models", 0, "aliases", 2, "deep", 1, 1): 18,
    ("models", 0, "fallback", 0, "params", "set", "t"): 20,
    ("models", 0, "fallback", 0, "model"): 20,
    ("models", 0, "fallback", 1): 20,
    ("models", 0, "alias_params"): 21,
    ("models", 0, "alias_params", "one"): 21,
    ("models", 0, "alias_params", "one", "set", "a"): 22,
    ("models", 1): 23,
    ("models", 1, "name"): 24,
    ("models", 1, "alias_params", "x", "drop"): 26,
    ("models", 1, "fallback"): 27,
    ("models", 1, "fallback", 0, "provider"): 28,
    ("models", 1, "fallback", 1): 29,
    ("models", 1, "fallback", 1, "provider"): 30,
    ("providers",): 31,
    ("providers", "a b", "models", "x/y", "price"): 31,
    ("providers", "a b", "models", "x/y", "price", "input"): 32,
    ("providers", "a b"): 33,
    ("providers", "a b", "when"): 34,
    ("providers", "a b", "base_url"): 35,
}


def places(value: object, place: Place = ()) -> Iterator[Place]:
    """Every place in what tomllib has read."""
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        yield (*place, key)
        yield from places(child, (*place, key))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_each_key_has_its_line(newline: str) -> None:
    """Whatever stands in texts and comments, however keys are written, as often as names repeat."""
    lines = lines_of(NASTY.replace("\n", newline))
    assert {place: lines.get(place) for place in EXPECTED} == EXPECTED
    assert set(lines) == set(places(tomllib.loads(NASTY)))


def test_what_the_file_does_not_say_stands_where_its_table_does() -> None:
    """A default has no line of its own; what has no table either has none at all."""
    lines = lines_of("\n[[workers]]\nname = 'w'\n")
    assert line_of(("workers", 0, "gateways"), lines) == 2
    assert line_of(("gateway", "host"), lines) is None
    assert line_of((), lines) is None


_KEYS = st.sampled_from(["a", "b-1", "'c.d'", '"e\\"]\\u0061"', "''", "1"])
_GAPS = st.sampled_from(["", " ", "\t"])
_SCALARS = st.sampled_from(
    [
        *("1", "true", "1979-05-27 07:32:00", "-inf", '"x"', "'#'", '"\\\\"', '""""""', "''''''"),
        *('"""\n["]\n\\""""""', "'''\na = 1\n''''"),
    ]
)


def _inline(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    gap = st.sampled_from(["", " ", "\n", " # ] }\n  "])
    items = st.lists(st.builds("{1}{0}{2}".format, values, gap, gap), max_size=3)
    pairs = st.lists(st.tuples(_KEYS, values), max_size=3, unique_by=lambda pair: pair[0])
    return st.one_of(
        items.map(lambda each: f"[{','.join(each)}]"),
        items.filter(bool).map(lambda each: f"[{','.join(each)},\n]"),
        pairs.map(lambda each: f"{{ {', '.join(f'{k} = {v}' for k, v in each)} }}"),
    )


_VALUES = st.recursive(_SCALARS, _inline, max_leaves=6)
_DOTTED = st.builds(
    lambda parts, gap: f"{gap}.{gap}".join(parts), st.lists(_KEYS, min_size=1, max_size=3), _GAPS
)
_STATEMENTS = st.one_of(
    st.builds("{1}{0}{1}={1}{2}{1}# ]".format, _DOTTED, _GAPS, _VALUES),
    st.builds("[{1}{0}{1}]".format, _DOTTED, _GAPS),
    st.builds("[[{1}{0}{1}]]".format, _DOTTED, _GAPS),
    st.just("# a = 1"),
)


@given(st.lists(_STATEMENTS, max_size=8))
def test_every_text_that_is_read_is_understood(statements: list[str]) -> None:
    """The same tables, keys and items as tomllib has found, and each in lines of its statement."""
    text, first_lines, last_lines = "", [], []
    known: dict[str, Any] = {}
    for statement in statements:
        line = text.count("\n") + 1
        try:
            tomllib.loads(f"{text}{statement}\n")
        except tomllib.TOMLDecodeError:
            continue
        text += f"{statement}\n"
        before, known = set(places(known)), tomllib.loads(text)
        for place in set(places(known)) - before:
            first_lines.append((place, line))
            last_lines.append((place, text.count("\n")))
    lines = lines_of(text)
    assert set(lines) == set(places(known))
    first, last = dict(first_lines), dict(last_lines)
    # The header of a table stands for it, even after those of tables within.
    headers = {number for number, line in enumerate(text.split("\n"), 1) if line.startswith("[")}
    for place, line in lines.items():
        assert first[place] <= line <= last[place] or line in headers, (place, text)


@given(st.text(max_size=60))
@example('"\\q" = 1')
@example("a = " + "[" * 200 + "]" * 200)
def test_other_text_is_left(text: str) -> None:
    """What is no TOML ends the search, and nothing else."""
    assert all(line >= 1 for line in lines_of(text).values())
