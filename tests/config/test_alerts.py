"""Receivers of alerts and hosts in the file."""

import pytest

from config import parse_config
from protocol.errors import ConfigError

GOOD = """
[[models]]
name = "m"

[[alerts]]
name = "ops"
url_env = "HOOK"
form = "slack"
kinds = ["fallback", "crash loop"]
quiet = "22:00-07:00"

[[alerts]]
name = "script"
command = ["notify", "--urgent"]

[[hosts]]
name = "box"
workers = ["w1"]
models = ["m"]
mac = "00:1a:2b:3c:4d:5e"
power = ["switch", "box"]
"""


def test_receivers_and_hosts_are_read() -> None:
    config = parse_config(GOOD, "x")
    assert [one.name for one in config.alerts] == ["ops", "script"]
    assert "provider" in config.alerts[1].kinds
    assert (config.hosts[0].wake_port, config.hosts[0].power_after_s) == (9, 300)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('url_env = "HOOK"', 'url_env = "HOOK"\nurl = "https://h.example"', ("one of `url`",)),
        ('url_env = "HOOK"\n', "", ("alerts `ops`", "one of `url`")),
        ('"22:00-07:00"', '"10pm"', ("quiet", "HH:MM-HH:MM")),
        ('"crash loop"', '"crash"', ("kinds", "crash")),
        ('name = "script"', 'name = "ops"', ("alert name `ops`", "twice")),
        ('"--urgent"]', '"--urgent"]\nform = "ntfy"', ("standard input",)),
        ('mac = "00:1a', 'mac = "zz:1a', ("mac", "hardware address")),
        ('models = ["m"]', 'models = ["n"]', ("there is no model `n`",)),
        ('models = ["m"]\n', "", ("names none",)),
        ('mac = "00:1a:2b:3c:4d:5e"\npower = ["switch", "box"]', "", ("neither `mac` nor",)),
    ],
)
def test_a_mistake_names_the_remedy(old: str, new: str, parts: tuple[str, ...]) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        parse_config(GOOD.replace(old, new, 1), "herma.toml")
    assert all(part in str(caught.value) for part in parts), caught.value


def test_there_are_at_most_eight_receivers() -> None:
    many = "".join(f'[[alerts]]\nname = "a{n}"\nurl = "http://h"\n' for n in range(9))
    with pytest.raises(ConfigError, match="at most 8"):
        parse_config('[[models]]\nname = "m"\n' + many, "x")
