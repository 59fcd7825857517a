"""Aliases that stand for all names that begin so."""

import pytest

from config import ParamsConfig, parse_config, wildcard_of
from gateway.http.edge import Edge, EdgeSettings, model_named
from protocol.errors import ConfigError
from tests.fakes.asgi import Script, model_view, scripted_edge

ALIASES = ("claude-*", "claude-opus-*", "gpt", "*")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("claude-opus-9", "claude-opus-*"),
        ("claude-haiku", "claude-*"),
        ("claude-", "claude-*"),
        ("gpt-5", "*"),
    ],
)
def test_the_longest_stands_for_the_name(name: str, found: str) -> None:
    assert wildcard_of(name, ALIASES) == found
    assert wildcard_of(name, ("gpt",)) is None


@pytest.mark.parametrize("alias", ["cl*de", "**", "*-x", "a b*"])
def test_a_star_stands_only_at_the_end(alias: str) -> None:
    """The mistake names the value."""
    text = f'[[models]]\nname = "alpha"\naliases = ["{alias}"]\n'
    with pytest.raises(ConfigError, match="perhaps with \\* at the end"):
        parse_config(text, "herma.toml")


def test_an_exact_name_comes_before_any_wildcard() -> None:
    """An exact name comes before any wildcard, also where the alias has rules of its own."""
    views = (model_view("alpha", aliases=("c-*",)), model_view("beta", aliases=("c-1",)))
    found = [model_named(views, name) for name in ("c-1", "c-2", "beta", "d")]
    assert [None if one is None else one.name for one in found] == ["beta", "alpha", "beta", None]
    plain = scripted_edge(Script(), models=views)
    params = {"c-*": ParamsConfig(set={"temperature": 0.0})}
    edge = Edge(
        EdgeSettings(plain.config, alias_params=params),
        version="1",
        run_turn=plain.run_turn,
        models=plain.models,
        gauges=plain.gauges,
        draining=plain.draining,
    )
    assert edge.by_alias({"model": "c-2"}) == {"model": "c-2", "temperature": 0.0}
    assert edge.by_alias({"model": "c-1"}) == {"model": "c-1"}
