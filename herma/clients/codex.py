"""codex: `~/.codex/config.toml`, the Responses API.

codex never asks `/v1/models` at a provider of one's own and assumes a window of 258,400 tokens, so
a session ends at the full window unless the file has its size.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from herma.clients.merging import merge_toml, table_lines, toml_value
from herma.clients.served import Served
from herma.clients.setup import Setup, answer_share

PROVIDER: Final = "herma"
STREAM_IDLE_MS: Final = 600_000
"""Milliseconds: as long as a gateway waits for a first token by default. Its keep-alives come far
more often.
"""


def setup(served: Served, environ: Mapping[str, str], home: Path) -> Setup:
    """codex at that gateway."""
    keys, provider = _keys(served), _provider(served)
    path = ("model_providers", PROVIDER)
    lines = [
        *(f"{key} = {toml_value(value)}" for key, value in keys.items()),
        "",
        *table_lines(path, provider),
    ]
    given = {**keys, **{".".join((*path, key)): value for key, value in provider.items()}}
    options = (("-c", f"{key}={toml_value(value)}") for key, value in given.items())
    return Setup(
        program="codex",
        path=Path(environ.get("CODEX_HOME") or home / ".codex") / "config.toml",
        text="\n".join(lines) + "\n",
        merge=lambda text: merge_toml(text, keys, path, provider),
        argv=("codex", *(word for pair in options for word in pair)),
        install="npm install -g @openai/codex",
    )


def _keys(served: Served) -> dict[str, Any]:
    keys: dict[str, Any] = {"model": served.default.id, "model_provider": PROVIDER}
    if (window := served.default.max_model_len) is not None:
        keys["model_context_window"] = window
        keys["model_auto_compact_token_limit"] = window - answer_share(window)
    return keys


def _provider(served: Served) -> dict[str, Any]:
    provider = {"name": "Herma", "base_url": served.url, "wire_api": "responses"}
    if served.key_env is not None:
        provider["env_key"] = served.key_env
    return {**provider, "stream_idle_timeout_ms": STREAM_IDLE_MS}
