"""A client's configuration in a user's file: what is theirs stays, what is ours is right."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herma.clients.merging import merge_json, merge_toml, merged, table_lines, toml_value
from protocol.errors import HermaError

KEYS = {"model": "alpha", "model_context_window": 40_960}
PATH = ("model_providers", "herma")
TABLE = {"base_url": "http://127.0.0.1:8080/v1", "stream_idle_timeout_ms": 600_000}

USERS = """\
# my own words
model = "gpt-5"   # the old one
approval_policy = "never"

[model_providers.herma]  # from last year
base_url = "http://elsewhere"
env_key = "OLD"

[model_providers.other]
name = "Other"

[mcp_servers.files]
command = "files"
args = ["-a", "b"]
"""


def test_a_new_file_has_ours_alone() -> None:
    """A new file has ours alone."""
    text = merge_toml("", KEYS, PATH, TABLE)
    assert tomllib.loads(text) == {**KEYS, "model_providers": {"herma": TABLE}}


def test_a_users_tables_and_comments_stay() -> None:
    """Our keys and our table are replaced; a second time changes nothing more."""
    text = merge_toml(USERS, KEYS, PATH, TABLE)
    whole, old = tomllib.loads(text), tomllib.loads(USERS)
    assert whole["model_providers"] == {"herma": TABLE, "other": {"name": "Other"}}
    assert whole["mcp_servers"] == old["mcp_servers"]
    assert (whole["model"], whole["model_context_window"]) == ("alpha", 40_960)
    assert whole["approval_policy"] == "never"
    assert "# my own words" in text
    assert merge_toml(text, KEYS, PATH, TABLE) == text


@pytest.mark.parametrize(
    "text",
    [
        'model_providers = { herma = { base_url = "http://elsewhere" } }\n',
        'model_providers.herma.base_url = "http://elsewhere"\n',
        '[model_providers]\nherma = { base_url = "http://elsewhere" }\n',
        'notes = """\n[model_providers.herma]\nmodel = 3\n"""\nmodel = "x"\n',
        "[model_providers.herma.inner]\na = 1\n",
        "not toml",
    ],
)
def test_what_cannot_be_changed_by_lines_is_refused(text: str) -> None:
    """What cannot be changed by lines is refused, and never becomes a file that reads as something
    else.
    """
    with pytest.raises(HermaError):
        merge_toml(text, KEYS, PATH, TABLE)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_string_is_one_of_toml(text: str) -> None:
    """Quotes, controls, lines and DEL."""
    assert tomllib.loads(f"a = {toml_value(text)}") == {"a": text}
    lines = "\n".join(table_lines(("a", text or "b"), {text: 1}))
    assert tomllib.loads(lines) == {"a": {text or "b": {text: 1}}}


def test_json_is_merged_by_rfc_7396() -> None:
    """Objects are merged, the rest is replaced, null removes; a user's order stays."""
    old = {"theme": "dark", "env": {"A": "1", "B": "2"}, "list": [1]}
    patch: dict[str, Any] = {"env": {"B": None, "C": "3"}, "list": [2]}
    text = merge_json(json.dumps(old), patch)
    assert json.loads(text) == {"theme": "dark", "env": {"A": "1", "C": "3"}, "list": [2]}
    assert list(json.loads(text)) == ["theme", "env", "list"]
    assert merged({"env": "no object"}, {"env": {"A": "1"}}) == {"env": {"A": "1"}}


@pytest.mark.parametrize("text", ["// a comment\n{}", "[]", "{"])
def test_what_is_no_plain_object_is_refused(text: str) -> None:
    """Comments would be lost."""
    with pytest.raises(HermaError):
        merge_json(text, {"a": 1})
