"""Installs programs that evaluate and measure servers, each in an environment of its own.

Owns their pinned versions and which of them must install. Must not know what they ask.

    python -m tests.evaluation.install FOLDER
"""

import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tests.clients.install import python_of

INSTALL_S: Final = 1200


class Program(NamedTuple):
    """What pip installs, and the command that it brings: a name in `bin`, or a pattern of a path in
    the environment. `must`: nothing works without it. `python`: the oldest that it takes.
    """

    name: str
    requirement: str
    command: str
    must: bool = False
    python: str = "3.11"


PROGRAMS: Final = (
    Program("lm-eval", "lm-eval[api]==0.4.13 transformers==5.23.0", "lm_eval", must=True),
    Program("guidellm", "guidellm==0.8.1", "guidellm", must=True),
    Program("aiperf", "aiperf==0.13.0", "aiperf"),
    Program("inference-perf", "inference-perf==0.7.0", "inference-perf", python="3.12"),
)


def command_of(folder: Path, name: str, programs: tuple[Program, ...] = PROGRAMS) -> Path | None:
    """The command of an installed program; None if it is not installed."""
    program = next(one for one in programs if one.name == name)
    pattern = program.command if "/" in program.command else f"bin/{program.command}"
    return next((folder / name).glob(pattern), None)


def install(folder: Path, programs: tuple[Program, ...]) -> bool:
    """Install what is missing, with a line for each program. Returns whether all that must be
    installed is.
    """
    is_complete = True
    for program in programs:
        if command_of(folder, program.name, programs) is None:
            try:
                interpreter = python_of(program.python)
            except FileNotFoundError as error:
                print(f"{program.requirement}: skipped, {error}", flush=True)
                is_complete &= not program.must
                continue
            subprocess.run([interpreter, "-m", "venv", folder / program.name], check=True)
            python = folder / program.name / "bin" / "python"
            made = subprocess.run(
                [python, "-m", "pip", "install", "-q", *program.requirement.split()],
                capture_output=True,
                text=True,
                timeout=INSTALL_S,
                check=False,
            )
            if made.returncode:
                reason = (made.stderr.strip().splitlines() or ["pip says nothing"])[-1]
                print(f"{program.requirement}: skipped, {reason}", flush=True)
                is_complete &= not program.must
                continue
        print(f"{program.requirement}: installed", flush=True)
    return is_complete


if __name__ == "__main__":
    sys.exit(0 if install(Path(sys.argv[1]).absolute(), PROGRAMS) else 1)
