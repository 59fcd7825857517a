"""Triton's interpreter without two things that it does in vain; a kernel computes what it did.

Of the time of an attention kernel 25 % goes into looking through `triton.language` for builtins at
every call of a device function, though the launch has replaced them, and 23 % into overflow checks
of integers whose outcome only a debug build looks at. Must not know kernels.
"""

import inspect
from typing import Any

from triton.language.core import is_builtin
from triton.runtime import interpreter

_builtins: dict[Any, list[str]] = {}


def quicken() -> None:
    """From now on, in this process."""
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        sanitize_overflow=False
    )
    interpreter._patch_builtin = _patch_builtin


def _patch_builtin(owner: Any, builder: Any, scope: Any) -> None:
    """As the interpreter's own: the builtins of `owner` are replaced together, and put back
    together when the scope ends. The first one tells whether there is anything to do.
    """
    if owner not in _builtins:
        found = inspect.getmembers(owner, is_builtin)
        _builtins[owner] = [name for name, _ in found]
    names = _builtins[owner]
    if names and is_builtin(getattr(owner, names[0])):
        for name in names:
            interpreter._patch_attr(owner, name, getattr(owner, name), builder, scope)
