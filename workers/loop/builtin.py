"""The models that need no download: directories that are installed with Herma.

Owns nothing but the refusal of other names. Must not know what is in the directories: they are
ordinary ones.
"""

from pathlib import Path

from config import builtin_models, no_builtin
from protocol.errors import ConfigError


def builtin_dir(model: str) -> Path:
    """The directory of a name such as `builtin:herma-tiny`. Raises `ConfigError` for others."""
    if (found := builtin_models().get(model)) is None:
        raise ConfigError(no_builtin(model))
    return found
