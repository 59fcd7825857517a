"""The list of models.

Owns the JSON of `/v1/models`. Must not know workers. Each entry holds exactly one number that
could be a context length: clients take the first that they find, also inside nested objects.
"""

from typing import Any

from gateway.core.errors import model_not_found
from gateway.core.models import ModelView


def model_list(models: tuple[ModelView, ...], created: int) -> dict[str, Any]:
    """The models by their own names; aliases answer too, but only when asked for. `created` is in
    Unix seconds.
    """
    return {
        "object": "list",
        "data": [_entry(model.name, model, created) for model in models],
    }


def model_entry(models: tuple[ModelView, ...], name: str, created: int) -> dict[str, Any]:
    """The model that answers to `name`. Raises `ApiError` 404."""
    for model in models:
        if name == model.name or name in model.aliases:
            return _entry(name, model, created)
    raise model_not_found(name)


def _entry(name: str, model: ModelView, created: int) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "herma",
        "root": model.name,
    }
    if model.context_length is not None:
        entry["max_model_len"] = model.context_length
    return entry
