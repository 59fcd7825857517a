"""A real supervisor whose engine is the stub: how the engine behaves is decided by the test."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes import stub_engine
from tests.fakes.worker_process import WorkerProcess, worker_process, write_model_dir

ROOT = Path(__file__).parents[2]


class Mood:
    """What the next engine does; takes effect at its start."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "mood.json"
        self._model_dir = str(write_model_dir(folder / "model"))

    def set(self, **mood: object) -> None:
        """As `stub_engine` describes; nothing makes a healthy one."""
        self.path.write_text(json.dumps({"model_dir": self._model_dir, **mood}))

    def environ(self, command: list[str] | None = None) -> dict[str, str]:
        """The environment of a supervisor whose engine is the stub, or whatever `command`
        starts.
        """
        words = command or [sys.executable, str(Path(stub_engine.__file__)), str(self.path)]
        return {"HERMA_ENGINE_COMMAND": json.dumps(words), "PYTHONPATH": str(ROOT)}


@contextmanager
def moody_worker(
    folder: Path,
    *gateways: str,
    command: list[str] | None = None,
    environ: dict[str, str] | None = None,
    settings: dict[str, object] | None = None,
    **mood: object,
) -> Iterator[tuple[WorkerProcess, Mood]]:
    """A worker named `w` with the stub as its engine, or whatever `command` starts."""
    first = Mood(folder)
    first.set(**mood)
    variables = {**first.environ(command), **(environ or {})}
    with worker_process(folder, *gateways, environ=variables, **(settings or {})) as worker:
        yield worker, first
