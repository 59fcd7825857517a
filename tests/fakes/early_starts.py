"""Kernels that begin before the one ahead has ended, in Triton's interpreter, which runs one after
another: does any rely on that?

Owns the watch over launches. A launch with `launch_pdl` may begin when every program of the one
ahead has called `gdc_launch_dependents`, or has ended; only behind `gdc_wait` is all of that one
done. So ahead of its wait a kernel must store nothing, and load nothing that a kernel writes which
may still run; and where that one writes anything some program must wait, or this launch ends first,
and the one behind it relies on too much. What torch computes in between waits for all, which makes
more of it right than is counted here. Must not know kernels.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from triton.language.extra import cuda
from triton.runtime import interpreter

import kernels

_Places: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Launched:
    """A kernel that was launched: whether it may begin early, whether it lets the next one do so,
    ahead of its own wait or behind it, and which launches were surely done when it began.
    """

    def __init__(self, name: str, number: int, *, is_early: bool) -> None:
        self.name = name
        self.number = number
        self.is_early = is_early
        self.lets = False
        self.lets_ahead = False
        self.has_waited = False
        self.num_done = number
        self.written: list[_Places] = []
        self.read_ahead: list[_Places] = []
        self.faults: set[str] = set()


class Watch:
    """The launches, and what is wrong with them."""

    def __init__(self) -> None:
        self.launches: list[Launched] = []
        self.faults: list[str] = []
        self._has_waited = False

    @property
    def early(self) -> set[str]:
        """The kernels that may begin early."""
        return {launch.name for launch in self.launches if launch.is_early}

    def begin(self, name: str, *, is_early: bool) -> None:
        launch = Launched(name, len(self.launches), is_early=is_early)
        if self.launches and is_early and (ahead := self.launches[-1]).lets:
            # What lets the next one begin behind its wait has seen the end of all ahead of it.
            launch.num_done = ahead.num_done if ahead.lets_ahead else ahead.number
        self.launches.append(launch)

    def begin_program(self) -> None:
        self._has_waited = not self.launches[-1].is_early

    def wait(self) -> None:
        self._has_waited = self.launches[-1].has_waited = True

    def let(self) -> None:
        launch = self.launches[-1]
        launch.lets = True
        launch.lets_ahead |= not self._has_waited

    def loaded(self, places: _Places) -> None:
        if not self._has_waited:
            self.launches[-1].read_ahead.append(places)

    def stored(self, places: _Places) -> None:
        launch = self.launches[-1]
        launch.written.append(places)
        if not self._has_waited:
            launch.faults.add(f"{launch.name} stores ahead of its wait")

    def end(self) -> None:
        launch = self.launches[-1]
        launch.written = [_joined(launch.written)]
        running = self.launches[launch.num_done : launch.number]
        if not launch.has_waited and any(other.written[0].size for other in running):
            launch.faults.add(f"{launch.name} never waits")
        read = _joined(launch.read_ahead)
        for other in running:
            if np.isin(read, other.written[0], assume_unique=True).any():
                launch.faults.add(f"{launch.name} loads ahead of its wait what {other.name} writes")
        launch.read_ahead.clear()
        self.faults += sorted(launch.faults)


def _joined(parts: list[_Places]) -> _Places:
    return np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))


def _places(pointers: Any, mask: Any) -> _Places:
    """The addresses of all numbers that are loaded or stored: kernels agree on where these
    begin.
    """
    chosen = np.broadcast_to(np.asarray(mask).astype(bool), np.shape(pointers))
    return np.unique(np.asarray(pointers)[chosen].astype(np.int64))


@contextmanager
def early_starts() -> Iterator[Watch]:
    """Meanwhile operations on a CPU run in Triton, and kernels begin early where they would on a
    card; a watch of them.
    """
    watch, modules = Watch(), _ours()
    undo: list[tuple[Any, str, Any]] = []
    answers = [(module, name, value) for module in modules for name, value in _ANSWERS.items()]
    for owner, name, value in (*_watching(watch), *answers):
        if hasattr(owner, name):
            undo.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)
    _forget(modules)
    try:
        yield watch
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)
        _forget(modules)


def _watching(watch: Watch) -> list[tuple[Any, str, Any]]:
    """What the interpreter does instead, so that `watch` sees it: owners, names and values."""
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    call, load, store = executor.__call__, builder.create_masked_load, builder.create_masked_store
    go, count = builder.set_grid_idx, builder.create_atomic_rmw

    @wraps(call)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch.begin(self.fn.__name__, is_early=bool(kwargs.get("launch_pdl")))
        found = call(self, *args, **kwargs)
        watch.end()
        return found

    def loads(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        watch.loaded(_places(pointers.data, mask.data))
        return load(self, pointers, mask, *rest)

    def stores(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        watch.stored(_places(pointers.data, mask.data))
        return store(self, pointers, value, mask, *rest)

    def counts(self: Any, op: Any, pointer: Any, value: Any, mask: Any, *rest: Any) -> Any:
        watch.stored(_places(pointer.data, mask.data))
        return count(self, op, pointer, value, mask, *rest)

    def goes(self: Any, *index: int) -> None:
        watch.begin_program()
        go(self, *index)

    return [
        (executor, "__call__", called),
        (builder, "create_masked_load", loads),
        (builder, "create_masked_store", stores),
        (builder, "create_atomic_rmw", counts),
        (builder, "set_grid_idx", goes),
        (cuda, "gdc_wait", watch.wait),
        (cuda, "gdc_launch_dependents", watch.let),
    ]


_ANSWERS = {
    "has_pdl": lambda _: True,
    "has_fp8": lambda _: True,
    "uses_triton": lambda _: True,
    "prefetch": lambda *_: None,
}
"""Of the functions that all kernels ask, and of one in machine code that changes nothing."""


def _ours() -> list[ModuleType]:
    """All modules of kernels, and those of engines that are there. One imported later would keep
    the answers.
    """
    for found in walk_packages(kernels.__path__, "kernels."):
        if not found.name.startswith("kernels.cuda."):  # which need CUDA's libraries
            import_module(found.name)
    ours = "kernels", "workers.engine"
    return [module for name, module in list(sys.modules.items()) if name.startswith(ours)]


def _forget(modules: Iterable[ModuleType]) -> None:
    """Launches are made once for a device."""
    for module in modules:
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()
