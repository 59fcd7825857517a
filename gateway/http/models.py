"""The list of models.

Owns the JSON of `/v1/models`. Must not know workers. Each entry holds exactly one number that
could be a context length: clients take the first that they find, also inside nested objects.
"""

from typing import Any

from gateway.core.errors import model_not_found
from gateway.http.edge import ModelFacts


def model_list(models: tuple[ModelFacts, ...], created: int) -> dict[str, Any]:
    """Every name that a request may use, aliases included: a client looks its length up by the
    name that it uses. `created` is in Unix seconds.
    """
    entries = [
        _entry(name, model, created) for model in models for name in (model.name, *model.aliases)
    ]
    return {"object": "list", "data": entries}


def model_entry(models: tuple[ModelFacts, ...], name: str, created: int) -> dict[str, Any]:
    """The model that answers to `name`. Raises `ApiError` 404."""
    for model in models:
        if name == model.name or name in model.aliases:
            return _entry(name, model, created)
    raise model_not_found(name)


def _entry(name: str, model: ModelFacts, created: int) -> dict[str, Any]:
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
