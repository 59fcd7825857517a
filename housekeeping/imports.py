"""Imports without the garbage collector, for the start of a process.

Modules make hundreds of thousands of objects that live as long as the process. The collector, which
looks at all of them again and again, is a tenth of the time that an import of torch and the engine
takes. Owns that pause; must not know what is imported.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


@contextmanager
def uncollected() -> Iterator[None]:
    """Stop the collector for the length of the block, if it was on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def import_uncollected(name: str) -> ModuleType:
    """The module of that name, imported with the collector stopped."""
    with uncollected():
        return import_module(name)
