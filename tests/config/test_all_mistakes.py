"""All mistakes of a file in one run."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import find_mistakes, found_config, parse_config
from protocol.errors import ConfigError

TEN = """\
[gateway]
prot = 8080
drain_s = "ten"

[[models]]
name = "m"
profil = "balanced"
fallback = [{ provider = "nobody", model = "x" }]

[[models]]
name = "m2"
profile = "fastest"

[[workers]]
name = "w0"
model = "/models/x"
serves = "nope"

[[workers]]
name = "w1"
model = "Qwen/Qwen3-8B"
engine = "vllm"
serves = "m"

[[workers]]
name = "w1"
engine = "vlm"
model = "a/b"
serves = "m"

[providers.cloud]
base_url = "openrouter.ai"
api_key = "sk-123"

[[keys]]
name = "alice"
hash = "md5:1"
"""
EXPECTED = {
    2: "unknown key `prot`",
    3: "drain_s: expected a number",
    7: "unknown key `profil`",
    8: "no table [providers.nobody]",
    12: "unknown profile `fastest`",
    17: "serves `nope`",
    19: "needs `url`",
    26: "the worker name `w1` is used twice",
    27: 'engine cannot be "vlm"',
    32: "base_url: expected an address",
    33: "unknown key `api_key`",
    35: "hash must be",
}


def _by_line(text: str) -> dict[int, str]:
    found = {}
    for line in find_mistakes(text, "f"):
        name, number, words = line.split(":", 2)
        assert name == "f"
        found[int(number)] = words
    return found


def test_every_mistake_is_named_with_its_line() -> None:
    found = _by_line(TEN)
    assert found.keys() == EXPECTED.keys()
    for line, words in EXPECTED.items():
        assert words in found[line], (line, found[line])


def test_lines_that_are_no_toml_hide_no_others() -> None:
    text = TEN.replace("[[keys]]", 'port = = 1\nhost = "x\n[[keys]]')
    found = _by_line(text)
    assert "not valid TOML" in found[35]
    assert "not valid TOML" in found[36]
    assert {line for line in EXPECTED if line < 35} <= found.keys()
    assert "hash must be" in found[37]


def test_a_key_that_is_wrong_is_not_missing_too() -> None:
    """A table needs it, and says in words what for."""
    worker = '[[workers]]\nname = "w"\nmodel = "m"\nengine = "openai"\nserves = "m"\n'
    (only,) = find_mistakes(f'{worker}url = "htp:/127.0.0.1:9"\n', "f")
    assert "url: expected http://HOST:PORT" in only
    (only,) = find_mistakes(worker, "f")
    assert "needs `url`, where that engine listens" in only


@pytest.mark.parametrize(
    ("text", "line"),
    [
        # A path of Windows in quotes that read escapes.
        ('[[workers]]\nname = "w"\nmodel = "C:\\models\\q"\nserves = "m"\n', 3),
        ("[gateway\nport = 8080\n", 1),
        ("[[models]]\nname = “m”\n", 2),
        ("[providers.p]\nbase_url = http://127.0.0.1/v1\n", 2),
        ('[[models]]\nname = "m"\n[workers]]\nname = "w"\nmodel = "m"\n', 3),
        ('[[models]]\nname = "m"\n[[workers]]\nname = "w"\nserves = """m\nmodel = "q"\n', 7),
    ],
)
def test_what_follows_from_a_line_that_is_no_toml_is_no_mistake(text: str, line: int) -> None:
    """The key stands there, and the table has a head: only the line is wrong."""
    found = _by_line(text)
    assert all("not valid TOML" in words for words in found.values())
    assert min(found) == line


def test_an_open_text_ends_what_can_be_read() -> None:
    found = _by_line('[gateway]\nprot = 1\nhost = """\nnever closed\n')
    assert "unknown key `prot`" in found[2]
    assert any("not valid TOML" in words for words in found.values())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = 8080", "; it is a key of [gateway]"),
        ("[gateway]\nidle_s = 3", "; it is a key of [[models]] and [[workers]]"),
        # Nearer in name than in meaning: `hosts` and `profile`.
        ('host = "::1"', "it is a key of [gateway] and"),
        ('[[models]]\nname = "m"\nprice = { input = 1 }', "it is a key of [providers.NAME]"),
        ('[[models]]\nname = "m"\nfallbak = []', "did you mean `fallback`?"),
        ('[model]\nname = "m"', "did you mean `models`?"),
        ('[[provider]]\nname = "m"', "did you mean `providers`?"),
    ],
)
def test_a_key_of_another_table_is_named_with_its_home(text: str, words: str) -> None:
    (only,) = find_mistakes(text, "f")
    assert words in only


@pytest.mark.parametrize(
    ("engine", "meant"),
    [("ollama", "openai"), ("tgi", "openai"), ("llama.cpp", "llama-cpp"), ("vlm", "vllm")],
)
def test_another_name_of_an_engine_is_the_only_mistake(engine: str, meant: str) -> None:
    """`url` is right for the engine that was meant."""
    head = '[[workers]]\nname = "w"\nmodel = "m"\nserves = "m"\nurl = "http://127.0.0.1:1"\n'
    (only,) = find_mistakes(f'[[models]]\nname = "m"\n{head}engine = "{engine}"\n', "f")
    assert f'did you mean "{meant}"?' in only


@pytest.mark.parametrize("text", ["", '[[models]]\nname = "m"\n', "[gateway]\nport = 1\n"])
def test_a_right_file_has_none(text: str) -> None:
    assert find_mistakes(text, "f") == []


_LINES = st.lists(
    st.sampled_from(
        [
            *TEN.splitlines(),
            "[[providers]]",
            "[models]",
            "workers = 3",
            "[[hosts]]",
            "[ledger]",
            "x = [1, {",
            "[[alerts]]",
        ]
    ),
    max_size=25,
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('[[workers]]\nname = "w"\nmax_model_len = 3', "context_length"),
        ('[[workers]]\nname = "w"\nmax_num_seqs = 3', "max_seqs"),
        ('[providers.p]\nurl = "http://h"', "base_url"),
        ('[[keys]]\nname = "k"\nkey = "sk-1"', "hash"),
        ("[gateway]\nprot = 1", "port"),
    ],
)
def test_a_key_of_another_program_is_named_as_ours(text: str, meant: str) -> None:
    """One short line: behind a suggestion no list of all keys follows."""
    (line,) = [one for one in find_mistakes(text, "f") if "unknown key" in one]
    assert line.endswith(f"; did you mean `{meant}`?")


@pytest.mark.parametrize("key", ["max_tokens", "api_key"])
def test_a_key_that_is_a_little_like_another_brings_no_guess(key: str) -> None:
    (line,) = find_mistakes(f"[gateway]\n{key} = 1", "f")
    assert "did you mean" not in line


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('drain_s = "10s"', "a number of seconds"),
        ('max_body_bytes = "3MB"', "a whole number of bytes"),
        ('port = "8080"', "a whole number"),
    ],
)
def test_a_number_in_quotes_is_told_its_unit(text: str, number: str) -> None:
    (line,) = find_mistakes(f"[gateway]\n{text}", "f")
    assert f"expected {number}, got a text in quotes; a number stands without quotes" in line


@given(_LINES)
def test_the_first_mistake_of_a_start_is_among_them(lines: list[str]) -> None:
    """A start and the check agree on whether a file is right, whatever the file is."""
    text = "\n".join(lines)
    found = find_mistakes(text, "f")
    try:
        parse_config(text, "f")
    except ConfigError as error:
        assert found
        try:
            tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            return  # the check goes on behind such a line, with other mistakes before it
        assert str(error) in found
    else:
        assert not found


def test_a_file_is_found_here_and_in_the_users_directory(tmp_path: Path) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    (home / ".config/herma").mkdir(parents=True)
    here.mkdir()
    environ = {"HOME": str(home)}
    assert found_config(here, environ) is None
    (home / ".config/herma/herma.toml").touch()
    assert found_config(here, environ) == home / ".config/herma/herma.toml"
    (here / "herma.toml").touch()
    assert found_config(here, environ) == here / "herma.toml"
    other = {"HOME": str(home), "XDG_CONFIG_HOME": str(tmp_path / "none")}
    (here / "herma.toml").unlink()
    assert found_config(here, other) is None
