"""The models that need no download: directories that are installed with Herma.

Owns their names and places. Must not know what is in them: they are ordinary model directories.
"""

from importlib.resources import files
from pathlib import Path
from typing import Final

from protocol.errors import ConfigError

PREFIX: Final = "builtin:"


def builtin_dir(model: str) -> Path:
    """The directory of a name such as `builtin:herma-tiny`. Raises `ConfigError` for others."""
    home = Path(str(files("config") / "builtin"))
    names = sorted(path.name for path in home.iterdir() if path.is_dir())
    name = model.removeprefix(PREFIX)
    if name not in names:
        known = ", ".join(f"{PREFIX}{each}" for each in names)
        raise ConfigError(f"model {model!r} does not exist: the built-in ones are {known}")
    return home / name
