"""The options `--attach` and `--cloud` of a command, made into the text of a file.

Owns the reading of these options and what is said about each server.
"""

import argparse
import os
from collections.abc import Callable, Iterator

from herma.attach.asking import ask_server, root_of
from herma.attach.file_text import PORT, Attached, CloudChoice, file_text, window_of
from herma.attach.tokenizers import tokenizer_of
from protocol.errors import ConfigError


def text_of(
    arguments: argparse.Namespace, say: Callable[[str], None], worker_bind: str | None = None
) -> str:
    """The file for the servers and the provider of the options. `say` gets a line for each model.
    Raises `ConfigError`.
    """
    cloud = _cloud(arguments)
    if arguments.context_length is not None and not arguments.attach:
        raise ConfigError("--context-length N belongs to --attach URL")
    key = None
    if (name := arguments.attach_key_env) is not None and (key := os.environ.get(name)) is None:
        raise ConfigError(f"--attach-key-env {name}: the environment has no variable {name}")
    attached = [_attached(url, arguments, key) for url in arguments.attach or ()]
    for one in attached:
        for line in _words(one):
            say(line)
    port = PORT if arguments.port is None else arguments.port
    return file_text(attached, cloud, worker_bind, port)


def _attached(url: str, arguments: argparse.Namespace, key: str | None) -> Attached:
    root = root_of(url)
    server = ask_server(root, key)
    tokenizers: list[tuple[str | None, str]] = []
    for model in server.models:
        if server.engine == "openai":
            tokenizers.append((None, "this server takes text"))
        else:
            tokenizers.append(tokenizer_of(arguments.tokenizer or model.source))
    if arguments.tokenizer is not None and all(found is None for found, _ in tokenizers):
        raise ConfigError(f"--tokenizer {arguments.tokenizer}: {tokenizers[0][1]}")
    window = arguments.context_length
    for model in server.models:
        if (
            window is not None
            and model.context_length is not None
            and window > model.context_length
        ):
            raise ConfigError(
                f"--context-length {window} is more than the window of {model.name} at {root}, "
                f"{model.context_length}"
            )
    return Attached(root, server, tokenizers, arguments.attach_key_env, window)


def _cloud(arguments: argparse.Namespace) -> CloudChoice | None:
    if arguments.cloud is None:
        given = [name for name in ("cloud_key_env", "cloud_model") if getattr(arguments, name)]
        if given:
            raise ConfigError(f"--{given[0].replace('_', '-')} needs --cloud URL beside it")
        return None
    return CloudChoice(arguments.cloud, arguments.cloud_key_env, arguments.cloud_model)


def _words(one: Attached) -> Iterator[str]:
    for model, (directory, why) in zip(one.server.models, one.tokenizers, strict=True):
        tokens, is_assumed = window_of(one, model, directory)
        shown = tokens or model.context_length
        window = "" if shown is None or is_assumed else f", window {shown}"
        how = "in token ids" if directory is not None else f"in text ({why})"
        yield f"{one.root}: {one.server.product}, model {model.name}{window}, spoken to {how}"
        if is_assumed:
            yield (
                f"warning: {one.root} does not say how long the window of {model.name} is: "
                f"context_length = {tokens} is assumed; give what it has with --context-length N, "
                "or set it in [[workers]] of the file"
            )
