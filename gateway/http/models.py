"""The list of models.

Owns the JSON of `/v1/models`. Must not know workers. Each entry holds exactly one number that
could be a context length: clients take the first that they find, also inside nested objects.
"""

from typing import Any

from gateway.api import model_not_found
from gateway.routing import ModelView


def model_list(models: tuple[ModelView, ...], created: int) -> dict[str, Any]:
    """All names that answer, the models' own first; `root` tells which those are. Clients look for
    theirs in the list before they ask, and find its window there. `created` is in Unix seconds.
    """
    names = [(model.name, model) for model in models]
    names += [(alias, model) for model in models for alias in model.aliases]
    return {
        "object": "list",
        "data": [_entry(name, model, created) for name, model in names],
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
