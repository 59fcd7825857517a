"""What the `model` of a worker may name: one that is installed with Herma, one of the hub, or a
directory.

Owns the forms and the built-in names. Must not look for directories or ask a hub.
"""

import functools
import re
from importlib.resources import files
from pathlib import Path
from typing import Final

BUILTIN_PREFIX: Final = "builtin:"

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SCHEME: Final = re.compile(r"[\w-]+:")


@functools.cache
def builtin_models() -> dict[str, Path]:
    """The directories of the models that need no download, by name: builtin:herma-tiny."""
    home = Path(str(files("config") / "builtin"))
    return {
        f"{BUILTIN_PREFIX}{path.name}": path for path in sorted(home.iterdir()) if path.is_dir()
    }


def is_hub_id(model: str) -> bool:
    """Whether `model` is written as Qwen/Qwen3-0.6B; a directory may be as well."""
    return _HUB_ID.fullmatch(model) is not None


def no_builtin(model: str) -> str:
    """What to say of a `builtin:NAME` that is none."""
    return f"model {model!r} does not exist: the built-in ones are {', '.join(builtin_models())}"


def names_nothing(model: str) -> str | None:
    """Why no machine has such a model; None if one may."""
    if model in builtin_models():
        return None
    if model.startswith(BUILTIN_PREFIX):
        return no_builtin(model)
    if not model or _SCHEME.match(model):
        known = ", ".join(builtin_models())
        return (
            f"model {model!r} is neither a directory, nor a hub id such as Qwen/Qwen3-0.6B, "
            f"nor built in: {known}"
        )
    return None
