"""`herma init`: writes a commented configuration file.

Owns the questions to a person at a terminal. Must not start anything.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Final

from config import FILE_NAME, parse_config
from herma.attach.choices import text_of
from herma.attach.file_text import LIMIT_LINES, PORT
from herma.checks import known_model
from herma.commands.keys import new_api_key
from herma.terminal import answer_to
from housekeeping.service_manager import say
from protocol.errors import ConfigError

_HEAD: Final = """# Written by `herma`. `herma config show` prints every key with its value.

[gateway]
host = "127.0.0.1"
port = {port}
"""


def run(arguments: argparse.Namespace) -> int:
    """Write the file. Raises `ConfigError` if it exists, or for an address that does not answer."""
    path: Path = arguments.output
    if path.exists() and not arguments.force:
        raise ConfigError(f"{path} exists: name another file with --output, or give --force")
    if not _is_said(arguments):
        if not sys.stdin.isatty():
            raise ConfigError(
                "say what the file is for: --attach URL (a server that runs), --model DIR (Herma's "
                "own engine), --cloud URL (a provider), or run it at a terminal, which asks"
            )
        _ask(arguments)
    text = _own_engine(arguments) if arguments.model else text_of(arguments, say)
    secret = None
    if arguments.key is not None:
        secret, table = new_api_key(arguments.key)
        text += f"\n{table}\n"
    parse_config(text, str(path))  # what is written can be read
    # A file that names variables with keys is for its owner.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # noqa: PTH123
        file.write(text)
    is_found = path.name == FILE_NAME and path.parent.resolve() == Path.cwd()
    serve = "herma up" if is_found else f"herma up --config {path}"
    print(f"{path} is written; `herma config check {path}` checks it, `{serve}` serves it")
    if secret is not None:
        print(f"key of {arguments.key} (shown once), without which nothing is served: {secret}")
    return 0


def _is_said(arguments: argparse.Namespace) -> bool:
    return bool(arguments.attach or arguments.cloud or arguments.model)


def _ask(arguments: argparse.Namespace) -> None:
    """Fill the options from a person's answers; an empty answer leaves one out."""
    what = "Address of a server that runs already, as http://127.0.0.1:8000 (empty: none): "
    url = answer_to(what)
    arguments.attach = [url] if url else None
    if arguments.attach is None:
        model = answer_to("Model directory or hub id for Herma's own engine (empty: none): ")
        arguments.model = model or None
    cloud = answer_to("Base URL of a cloud provider to fall back to (empty: none): ")
    if cloud:
        arguments.cloud = cloud
        name = answer_to("Environment variable with its API key (empty: none): ")
        arguments.cloud_key_env = name or None
    if not _is_said(arguments):
        raise ConfigError("nothing to serve was named")


def _own_engine(arguments: argparse.Namespace) -> str:
    if arguments.attach:
        raise ConfigError("--model is Herma's own engine: leave --attach out, or --model")
    if arguments.context_length:
        raise ConfigError("--context-length is for --attach; a worker's table has context_length")
    model, name = known_model(arguments.model)
    text = _HEAD.format(port=PORT if arguments.port is None else arguments.port)
    text += f"\n[[models]]\nname = {json.dumps(name)}\n"
    if arguments.cloud:
        theirs = json.dumps(arguments.cloud_model or name)
        text += f'fallback = [{{ provider = "cloud", model = {theirs} }}]\n'
    text += (
        f'\n[[workers]]\nname = "gpu0"\nmodel = {json.dumps(model)}\nserves = {json.dumps(name)}\n'
    )
    if arguments.cloud:
        text += f"\n[providers.cloud]\nbase_url = {json.dumps(arguments.cloud)}\n"
        if arguments.cloud_key_env:
            text += f"api_key_env = {json.dumps(arguments.cloud_key_env)}\n"
        text += "".join(f"{line}\n" for line in LIMIT_LINES)
    return text
