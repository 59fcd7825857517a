"""What the extra `engine` of the distribution brings, and the error where it is missing.

Owns the names of those packages and the one command that installs them. Must not import them: a
gateway runs without them.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final

from config import WorkerConfig
from protocol.errors import ConfigError

ENGINE_PACKAGES: Final = ("torch", "triton", "numpy", "safetensors", "llguidance")
"""Top-level packages that only engines, `herma plan` and `herma bench engine` import."""
INSTALL: Final = "pip install 'herma[engine]' (in a checkout: make up)"
"""The command that installs these packages."""
_NEEDED: Final = ("torch", "numpy", "safetensors", "llguidance")
"""Triton is not published for every system; an engine on a CPU runs without it."""


def missing_packages() -> tuple[str, ...]:
    """The packages that an engine needs and this environment lacks."""
    return tuple(name for name in _NEEDED if find_spec(name) is None)


def check_engine_extra(workers: Iterable[WorkerConfig]) -> None:
    """Raise `ConfigError` if one of the workers has Herma's own engine and the engine's packages
    are not installed.
    """
    native = next((worker for worker in workers if worker.engine == "native"), None)
    if native is not None and (missing := missing_packages()):
        raise ConfigError(
            f"worker `{native.name}` is an engine of Herma, which needs {', '.join(missing)}; this "
            f"environment has the gateway alone: {INSTALL}"
        )
