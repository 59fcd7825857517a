"""Rewriting of requests and session hints in the configuration."""

import pytest

from config import ParamsConfig, parse_config
from protocol.errors import ConfigError

GOOD = """
[[models]]
name = "large"
aliases = ["quick"]

[[models.fallback]]
provider = "far"
model = "far-large"
params = { default = { temperature = 0.2 }, drop = ["think"] }

[models.alias_params.quick]
set = { reasoning_effort = "low", nested = { a = [1] } }

[providers.far]
base_url = "https://far.example/v1"
session_hint = "x-session-affinity"
"""


def test_rewriting_is_read() -> None:
    """Per alias and per fallback; values may be anything that TOML can say."""
    config = parse_config(GOOD, "herma.toml")
    (model,) = config.models
    assert model.alias_params == {
        "quick": ParamsConfig(set={"reasoning_effort": "low", "nested": {"a": [1]}})
    }
    assert model.fallback[0].params == ParamsConfig(default={"temperature": 0.2}, drop=("think",))
    assert config.providers["far"].session_hint == "x-session-affinity"


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("alias_params.quick", "alias_params.fast", ("`fast`", "known: quick")),
        ('drop = ["think"]', 'drop = ["model"]', ("`model`", "fixed")),
        ("temperature = 0.2", "stream = true", ("`stream`", "fixed")),
        ("set = {", "sett = {", ("`sett`", "`set`")),
        ("x-session-affinity", "x session", ("letters, digits", "session_hint")),
    ],
)
def test_a_mistake_is_named(old: str, new: str, parts: tuple[str, ...]) -> None:
    """What must not be rewritten, and names that are none."""
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        parse_config(GOOD.replace(old, new, 1), "herma.toml")
    assert all(part in str(caught.value) for part in parts), str(caught.value)
