"""What the configuration says of a model's prompts.

Owns the reading of the template files that `[[models]]` names, and the rule that a client's own
variables go before the model's. Must not know requests or workers.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from config import ModelConfig
from gateway.api import TEMPLATE_OWNED
from gateway.prompt import check_template
from protocol.errors import ConfigError


class ModelPrompt(NamedTuple):
    """Variables for a model's template, and the source of the template instead of its own."""

    variables: Mapping[str, Any]
    template: str | None = None

    def with_variables(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The variables of a request: those that it gives, and the model's others."""
        return {**self.variables, **given}


PLAIN: ModelPrompt = ModelPrompt({})


def read_model_prompts(models: Iterable[ModelConfig]) -> dict[str, ModelPrompt]:
    """The templates and variables of the models that set any, by name. Blocks. Raises `ConfigError`
    for a file that is no template, and for a variable that follows from a request.
    """
    return {
        model.name: ModelPrompt(_variables(model), _template(model))
        for model in models
        if model.chat_template_kwargs or model.chat_template is not None
    }


def _variables(model: ModelConfig) -> Mapping[str, Any]:
    if taken := sorted(TEMPLATE_OWNED & model.chat_template_kwargs.keys()):
        raise ConfigError(
            f"model `{model.name}`: chat_template_kwargs.{taken[0]} follows from the request: "
            "remove it"
        )
    return model.chat_template_kwargs


def _template(model: ModelConfig) -> str | None:
    if model.chat_template is None:
        return None
    path = Path(model.chat_template).expanduser()
    where = f"model `{model.name}`: chat_template {path}"
    try:
        source = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not UTF-8: {error}") from error
    try:
        check_template(source)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return source
