"""Hermes Agent: the block of `~/.hermes/config.yaml`, chat completions.

Owns how that block is found again in a user's file. The file is YAML, which is not parsed here: the
block is added to a file without a model of its own, and replaced where it stands as it was printed.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from herma.clients.served import Served
from herma.clients.setup import Setup
from protocol.errors import HermaError

MIN_WINDOW_TOKENS: Final = 64_000
"""Hermes refuses to start with a smaller window."""

_PLAIN: Final = re.compile(r"[A-Za-z_][\w./@-]*(:[\w./@-]+)*")
_WORDS_OF_YAML: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_TAKEN: Final = re.compile(r"^(model|providers)\s*:", re.MULTILINE)

_BLOCK: Final = """\
# For ~/.hermes/config.yaml: Hermes Agent 0.19 and later at the Herma gateway {url}
model:
  default: {default}
  provider: herma
providers:
  herma:
    name: herma
    base_url: {url}
    {key}
    transport: chat_completions
    models: {{{models}}}
    # Hermes 0.19 sends no session id, so Herma recognises a conversation by its prompt. Versions
    # that send one can set:
    # session_affinity_header: X-Session-Id
"""
_NO_KEY: Final = "api_key: any    # the gateway needs none; `herma keys new NAME` makes one"
_PRINTED: Final = re.compile(re.sub(r"\\\{(\\\{)?\w+\\\}(\\\})?", ".*", re.escape(_BLOCK)))


def setup(served: Served, environ: Mapping[str, str], home: Path) -> Setup:
    """Hermes Agent at that gateway."""
    text = _block(served)
    return Setup(
        program="hermes",
        path=Path(environ.get("HERMES_HOME") or home / ".hermes") / "config.yaml",
        text=text,
        merge=lambda old: _merge(old, text),
        argv=("hermes",),
        needs_file=True,
        warnings=tuple(_warnings(served)),
        install="pip install hermes-agent",
    )


def _warnings(served: Served) -> Iterator[str]:
    window = served.default.max_model_len
    if window is not None and window < MIN_WINDOW_TOKENS:
        yield (
            f"Hermes refuses {served.default.id}: its window has {window:,} tokens, and Hermes "
            f"needs {MIN_WINDOW_TOKENS:,}"
        )


def _merge(old: str, block: str) -> str:
    if _PRINTED.search(old):
        return _PRINTED.sub(lambda _: block, old, count=1)
    if taken := _TAKEN.search(old):
        raise HermaError(f"it has a `{taken[1]}` of its own; put the printed block in its place")
    return f"{old.rstrip()}\n\n{block}" if old.strip() else block


def _block(served: Served) -> str:
    ids = dict.fromkeys([*(model.id for model in served.models), served.default.id])
    key_env = served.key_env
    return _BLOCK.format(
        url=served.url,
        default=_scalar(served.default.id),
        key=_NO_KEY if key_env is None else f"key_env: {_scalar(key_env)}",
        models=", ".join(f"{_scalar(model)}: {{}}" for model in ids),
    )


def _scalar(text: str) -> str:
    """A YAML scalar, quoted unless the plain form is unambiguous."""
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML
    return text if is_plain else json.dumps(text)
