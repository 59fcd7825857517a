"""The text of a configuration for attached servers and a cloud provider, with comments.

Owns the names of its tables. Must not ask anything.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from herma.attach.recognition import RecognisedServer, ServedModel

ASSUMED_WINDOW: Final = 32_768
"""The context length, in tokens, that is written for a text-level server that does not say its own:
what most models for agents have. A server with a smaller window refuses longer prompts itself.
"""

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._:/@-]+")


LIMIT_LINES: Final = (
    "# A limit needs the price, per million tokens, and the longest answer; docs/spending.md:",
    "# price = { input = 0.5, output = 2.0 }",
    "# max_output_tokens = 8192",
    "# limits = { daily = 5.0 }",
)
"""Commented-out limits at the end of a provider's table. They apply to that provider once the
`#` marks are removed.
"""


@dataclass(frozen=True, slots=True)
class CloudChoice:
    """A provider to fall back to. `model` is the provider's name for the model; None: the local
    name.
    """

    base_url: str
    key_env: str | None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Attached:
    """A server at `root`. `tokenizers` has for each model the `model` key of a token-level worker,
    or None, and why. `context_length` is the window of its models that a person gave.
    """

    root: str
    server: RecognisedServer
    tokenizers: Sequence[tuple[str | None, str]]
    key_env: str | None = None
    context_length: int | None = None


def is_text(server: RecognisedServer, directory: str | None) -> bool:
    """Whether a worker speaks to the server in text. `directory` has the server's tokenizer, if
    any.
    """
    return directory is None or server.engine == "openai"


def window_of(one: Attached, model: ServedModel, directory: str | None) -> tuple[int | None, bool]:
    """The `context_length` to write, and whether it is only assumed; None where the worker learns
    it from its engine.
    """
    if one.context_length is not None:
        return one.context_length, False
    if not is_text(one.server, directory):
        return None, False
    if model.context_length is not None:
        return model.context_length, False
    return ASSUMED_WINDOW, True


PORT: Final = 8080


def file_text(
    attached: Sequence[Attached],
    cloud: CloudChoice | None,
    worker_bind: str | None = None,
    port: int = PORT,
) -> str:
    """The file as TOML. Servers that have a model of the same name become workers of one model."""
    lines = ["# Written by `herma`. `herma config show` prints every key with its value."]
    lines += ["", "[gateway]", 'host = "127.0.0.1"', f"port = {port}"]
    if worker_bind is not None:
        lines.append(f"worker_bind = {json.dumps(worker_bind)}")
    names: list[str] = []
    workers: list[str] = []
    for one in attached:
        for model, tokenizer in zip(one.server.models, one.tokenizers, strict=True):
            public = public_name(model.name)
            if public not in names:
                names.append(public)
            number = len([line for line in workers if line.startswith("[[workers]]")])
            workers += ["", *_worker(f"w{number}", public, one, model, tokenizer)]
    for name in names:
        lines += ["", *_model(name, cloud)]
    lines += workers
    if cloud is not None:
        lines += ["", *_provider(cloud)]
    return "\n".join(lines) + "\n"


def public_name(name: str) -> str:
    """The name under which clients ask for a model: a path's last part, in a name's letters."""
    plain = name.rpartition("/")[2] if name.startswith(("/", ".")) else name
    return _NOT_IN_NAMES.sub("-", plain).strip("-") or "model"


def _model(name: str, cloud: CloudChoice | None) -> Iterator[str]:
    yield "[[models]]"
    yield f"name = {json.dumps(name)}"
    if cloud is not None:
        theirs = json.dumps(cloud.model or name)
        yield f'fallback = [{{ provider = "cloud", model = {theirs} }}]'


def _worker(
    name: str, serves: str, one: Attached, model: ServedModel, tokenizer: tuple[str | None, str]
) -> Iterator[str]:
    directory, why = tokenizer
    in_text = is_text(one.server, directory)
    yield f"[[workers]]                # {one.server.product}"
    yield f"name = {json.dumps(name)}"
    if in_text:
        if one.server.engine != "openai":
            yield f"# Spoken to in text: {why}."
        yield 'engine = "openai"'
        yield f"model = {json.dumps(model.name)}"
    else:
        yield f'engine = "{one.server.engine}"'
        yield f"model = {json.dumps(directory)}  # {why}"
    yield f"serves = {json.dumps(serves)}"
    yield f"url = {json.dumps(one.root)}"
    if one.key_env is not None:
        yield f"api_key_env = {json.dumps(one.key_env)}"
    window, is_assumed = window_of(one, model, directory)
    if window is not None:
        hint = "  # set this: the server does not say how long its window is" if is_assumed else ""
        yield f"context_length = {window}{hint}"


def _provider(cloud: CloudChoice) -> Iterator[str]:
    yield "[providers.cloud]          # asked when no worker can serve"
    yield f"base_url = {json.dumps(cloud.base_url)}"
    if cloud.key_env is not None:
        yield f"api_key_env = {json.dumps(cloud.key_env)}"
    yield from LIMIT_LINES
