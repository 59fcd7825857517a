"""qwen-code: a model of `~/.qwen/settings.json`, chat completions.

qwen-code guesses the window of a model by its name, and gives a stream up after 240 s in which only
comments came.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from herma.clients.merging import json_text, merge_json, merged
from herma.clients.served import ListedModel, Served
from herma.clients.setup import NO_KEY, Setup
from protocol.errors import HermaError

KEY_ENV: Final = "HERMA_API_KEY"
"""The variable of the API key. qwen-code takes a key from a variable alone, so the variable is
set even where the gateway asks for no key.
"""

STREAM_IDLE_MS: Final = 600_000
"""Milliseconds: as long as a gateway waits for a first token by default."""


def setup(served: Served, environ: Mapping[str, str], home: Path) -> Setup:
    """qwen-code at that gateway."""
    text = json_text(_settings(served, []))
    folder = Path(environ.get("QWEN_HOME") or home / ".qwen")
    state = Path(environ.get("XDG_STATE_HOME") or home / ".local/state")
    file = state / "herma" / "qwen-code.json"
    return Setup(
        program="qwen",
        path=folder / "settings.json",
        text=text,
        merge=lambda old: _merge(old, served),
        argv=("qwen",),
        # A settings file that takes precedence over the user's own.
        environ={"QWEN_CODE_SYSTEM_SETTINGS_PATH": str(file)},
        files={file: text},
        install="npm install -g @qwen-code/qwen-code",
    )


def _merge(old: str, served: Served) -> str:
    """Our models stand before the user's: of two with one name and address the first is taken."""
    others = []
    if old.strip():
        whole = json.loads(merge_json(old, {}))
        others = whole.get("modelProviders", {}).get("openai", [])
        if not isinstance(others, list):
            raise HermaError("its modelProviders.openai is no list; do it by hand")
    return merge_json(old, _settings(served, others))


def _settings(served: Served, others: list[dict[str, Any]]) -> dict[str, Any]:
    ours = [_model(served, model) for model in served.own_models]
    kept = [other for other in others if other.get("baseUrl") != served.url]
    settings: dict[str, Any] = {
        "modelProviders": {"openai": [*ours, *kept]},
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": served.default.id},
    }
    return settings if served.key_env else merged(settings, {"env": {KEY_ENV: NO_KEY}})


def _model(served: Served, model: ListedModel) -> dict[str, Any]:
    generation = {"streamIdleTimeoutMs": STREAM_IDLE_MS}
    if model.max_model_len is not None:
        generation["contextWindowSize"] = model.max_model_len
    return {
        "id": model.id,
        "name": f"{model.id} (Herma)",
        "baseUrl": served.url,
        "envKey": served.key_env or KEY_ENV,
        "generationConfig": generation,
    }
