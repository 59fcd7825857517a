"""`herma completion`: the Tab key of real shells."""

import shutil
import subprocess
from pathlib import Path

import pytest

from herma.cli import command_parser, main

BOUND_S = 120
CASES = [
    ("herma sta", ["status"]),
    ("herma worker re", ["restart"]),
    ("herma worker restart gpu0 --fo", ["--force"]),
    ("herma up --log-format ", ["json", "text"]),
    ("herma --config a.toml", []),
    ("herma bench eng", ["engine"]),
    ("herma completion z", ["zsh"]),
    ("herma config check --no", ["--no-secrets"]),
]
BASH = """
source {script}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_herma
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def script_of(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("line", "found"), CASES)
def test_bash_completes(
    line: str, found: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command, one below it, an option, and the words that an option takes."""
    script = tmp_path / "herma.bash"
    script.write_text(script_of("bash", capsys))
    words = f"{line}''" if line.endswith(" ") else line
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH.format(script=script, words=words)],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=True,
    )
    assert sorted(done.stdout.split()) == found
    assert done.stderr == ""


@pytest.mark.parametrize(("line", "found"), CASES)
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(
    line: str, found: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "herma.fish"
    script.write_text(script_of("fish", capsys))
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=True,
    )
    assert sorted(row.split("\t")[0] for row in done.stdout.splitlines()) == found


def test_every_command_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    """In all three scripts, as the parser has them; what is no option of people is in none."""
    usage = command_parser().format_help()
    commands = [row.split()[0] for row in usage.splitlines() if row.startswith("    ")]
    for shell in ("bash", "zsh", "fish"):
        script = script_of(shell, capsys)
        assert not [name for name in commands if name[0].islower() and name not in script]
        assert "--parent" not in script
        assert "-l parent" not in script
