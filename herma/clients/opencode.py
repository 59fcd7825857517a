"""opencode: a provider in `opencode.json`, chat completions.

opencode compacts where `limit.context` less `limit.output` is reached.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from herma.clients.merging import json_text, merge_json
from herma.clients.served import ListedModel, Served
from herma.clients.setup import NO_KEY, Setup, answer_share

PROVIDER: Final = "herma"


def setup(served: Served, environ: Mapping[str, str], home: Path) -> Setup:
    """opencode at that gateway."""
    patch = _patch(served)
    config_home = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    text = json_text({"$schema": "https://opencode.ai/config.json", **patch})
    return Setup(
        program="opencode",
        path=Path(environ.get("OPENCODE_CONFIG") or config_home / "opencode" / "opencode.json"),
        text=text,
        merge=lambda old: merge_json(old, patch) if old.strip() else text,
        argv=("opencode",),
        environ={"OPENCODE_CONFIG_CONTENT": text},
        install="npm install -g opencode-ai",
    )


def _patch(served: Served) -> dict[str, Any]:
    key = NO_KEY if served.key_env is None else f"{{env:{served.key_env}}}"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Herma",
        "options": {"baseURL": served.url, "apiKey": key},
        "models": {model.id: _model(model) for model in served.own_models},
    }
    return {"model": f"{PROVIDER}/{served.default.id}", "provider": {PROVIDER: provider}}


def _model(model: ListedModel) -> dict[str, Any]:
    if (window := model.max_model_len) is None:
        return {"name": model.id}
    return {"name": model.id, "limit": {"context": window, "output": answer_share(window)}}
