"""The lines of keys, tables and items in a TOML text."""

import pytest

from config.mistakes import Place, line_of

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
    ("models", 0, "aliases", 2, "deep", 1, 1): 17,
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
    ("providers", "a b"): 31,
    ("providers", "a b", "when"): 34,
    ("providers", "a b", "base_url"): 35,
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_each_key_has_its_line(newline: str) -> None:
    """Each key has its line, whatever texts and comments hold, however keys are written, and
    however often they repeat. An item of a nested list has the line of the outer item; a table that
    is first named in the header of an inner one has the line of that header.
    """
    text = NASTY.replace("\n", newline)
    assert {place: line_of(place, text) for place in EXPECTED} == EXPECTED


def test_a_default_has_the_line_of_its_table() -> None:
    """A default has the line of its table, and none if the table is missing too."""
    text = "\n[[workers]]\nname = 'w'\n"
    assert line_of(("workers", 0, "gateways"), text) == 2
    assert line_of(("gateway", "host"), text) is None
    assert line_of((), text) is None
