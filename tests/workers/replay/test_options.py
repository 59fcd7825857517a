"""`herma worker --engine ...`: the command line stands for what a table would say."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from config import builtin_config
from protocol.errors import ConfigError
from workers.__main__ import with_options

NONE = dict.fromkeys(("gateway", "engine", "script", "model", "serves", "step_ms", "batch"))


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{**NONE, **given})


def test_options_replace_what_the_table_says() -> None:
    """Options replace keys of the table and leave the others."""
    table = builtin_config().workers[0]
    assert with_options(table, options()) == table
    fast = with_options(table, options(engine="synthetic", step_ms=20.0, batch=64))
    assert (fast.engine, fast.step_ms, fast.max_seqs) == ("synthetic", 20.0, 64)
    assert (fast.model, fast.serves) == (table.model, table.serves)
    assert with_options(table, options(script="s.toml")).engine == "scripted"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": "scripted"}, "belong together"),
        ({"engine": "synthetic", "script": "s.toml"}, "belong together"),
        ({"engine": "magic"}, "engine"),
        ({"batch": 0}, "max_seqs"),
        ({"step_ms": -1.0}, "step_ms"),
    ],
)
def test_what_a_table_could_not_say_is_refused(given: dict[str, object], said: str) -> None:
    """Options that a table could not have are refused by the same rules."""
    with pytest.raises(ConfigError, match=said):
        with_options(builtin_config().workers[0], options(**given))


def test_a_bad_script_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    """A bad script is one line before anything starts, with the rule and the command's exit
    status.
    """
    script = tmp_path / "s.toml"
    script.write_text("[[rules]]\nanswr = 'x'\n")
    argv = [sys.executable, "-m", "herma", "worker", "--script", str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "rule 1: unknown key `answr`; did you mean `answer`?" in line
