"""`herma codex`, `claude-code`, `opencode`, `qwen-code`, `hermes`: a client at a running gateway.

Owns what is printed, written or run. Must not know what a client's file looks like.
"""

import argparse
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, Never

from herma.clients.options import CLIENTS
from herma.clients.served import ask_gateway
from herma.clients.setup import Setup
from protocol.errors import HermaError

BACKUP: Final = "before-herma"
"""The last part of a backup's name; a second one gets a number."""


def run(arguments: argparse.Namespace) -> int:
    """Print the configuration, merge it into the client's file, or run the client with it. Raises
    `HermaError` if no gateway answers, the model is not served, or the file cannot be merged.
    """
    title = CLIENTS[arguments.command]
    served = ask_gateway(arguments.url, arguments.model, arguments.key_env, title, arguments.config)
    module = import_module(f"herma.clients.{arguments.command.replace('-', '_')}")
    setup: Setup = module.setup(served, os.environ, Path.home())
    for warning in setup.warnings:
        _say(warning)
    if served.default.max_model_len is None:
        _say(
            f"the window of {served.default.id} is not known yet, so {title} guesses it; ask again "
            "when a worker is ready, or set `context_length` in [[models]]"
        )
    is_run = arguments.run or bool(arguments.arguments)
    if arguments.write or arguments.output:
        _write(setup, Path(arguments.output).expanduser() if arguments.output else setup.path)
    elif not is_run:
        print(setup.text, end="")
        if sys.stdout.isatty():
            _say(f"{title} reads this from {setup.path}; --write merges it, --run uses it without")
    elif setup.needs_file:
        raise HermaError(f"{title} reads its own file alone: add --write")
    if is_run:
        _run(setup, arguments.arguments)
    return 0


def _say(text: str) -> None:
    print(f"herma: {text}", file=sys.stderr)


def _write(setup: Setup, path: Path) -> None:
    """Merge the configuration into `path`, with a backup of what is there."""
    path = path.resolve()  # a symbolic link stays a link: the file that it names is written
    try:
        old = path.read_text(encoding="utf-8-sig") if path.exists() else ""
        new = setup.merge(old)
        if new == old:
            _say(f"{path} has it already")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        backup = _backup(path)
        _replace(path, new)
    except HermaError as error:
        raise HermaError(f"{path}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise HermaError(f"{path} cannot be changed: {error}") from error
    _say(f"{path} written" + (f"; what it was is in {backup}" if backup else ""))


def _backup(path: Path) -> Path | None:
    """A copy of `path` beside it, which replaces no earlier one; None if there is no such file."""
    if not path.exists():
        return None
    backup, number = path.with_name(f"{path.name}.{BACKUP}"), 1
    while backup.exists():
        number += 1
        backup = path.with_name(f"{path.name}.{BACKUP}-{number}")
    shutil.copy2(path, backup)
    return backup


def _replace(path: Path, text: str) -> None:
    """Write `text` to `path` at once, readable by those who could read it before."""
    with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        file.write(text)
    if path.exists():
        shutil.copymode(path, file.name)
    Path(file.name).replace(path)


def _run(setup: Setup, arguments: list[str]) -> Never:
    """Replace this process by the client."""
    if shutil.which(setup.program) is None:
        raise HermaError(f"`{setup.program}` is not installed; `{setup.install}` does it")
    for path, text in setup.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    environ = {**os.environ, **setup.environ}
    os.execvpe(setup.program, [*setup.argv, *arguments], environ)  # noqa: S606
