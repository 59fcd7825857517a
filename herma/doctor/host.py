"""A host as checks read it: files below a root, the environment, and short queries.

Owns every access to the machine, so that a test can plant a tree and answers instead. Must not know
what a fact means.
"""

import os
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from config import LedgerConfig
from herma.processes import GatewayProcess, Supervisor
from housekeeping.file_root import FileRoot

_QUERY_S: Final = 5.0
"""The time limit of a query. nvidia-smi answers in 0.1 to 3 s, or never."""


@dataclass(frozen=True, slots=True)
class QueryOutput:
    """A query's output, both streams in one text, and its exit status."""

    status: int
    text: str


Query = Callable[[Sequence[str]], QueryOutput | None]
"""(argv) -> the output of a program; None if the program does not exist or does not answer."""


def _not_asked(_ledger: LedgerConfig) -> None:
    """The default of `ask_shared_limits`, which asks no server: before a start no command waits
    for a server that may come later.
    """


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


@dataclass(frozen=True, slots=True)
class Host(FileRoot):
    """A machine. Paths are absolute on it. `packages` is the folder of the installed Python
    packages. `gateways` and `workers` ask those that run. `ask_shared_limits` asks the server of
    the shared limits, and returns its trouble or None. `free_bytes` is what the
    disk of a folder has left for this user, `unix_time` what its clock shows. `config_file` is the
    absolute path of the configuration that is looked at, "" for none.
    """

    environ: Mapping[str, str]
    query: Query
    packages: Path
    gateways: Callable[[], Iterable[GatewayProcess]] = tuple
    ask_shared_limits: Callable[[LedgerConfig], str | None] = _not_asked
    workers: Callable[[], Iterable[Supervisor]] = tuple
    free_bytes: Callable[[Path], int] = _free_bytes
    unix_time: Callable[[], float] = time.time
    config_file: str = ""
    _answers: dict[tuple[str, ...], QueryOutput | None] = field(default_factory=dict)

    def exists(self, name: str | Path) -> bool:
        try:
            return self.path(name).exists()
        except OSError:
            return False

    def size(self, name: str | Path) -> int:
        """The size of the file in bytes; 0 if it is missing, or a broken link."""
        with suppress(OSError):
            return self.path(name).stat().st_size
        return 0

    def names(self, folder: str | Path, pattern: str = "*") -> Iterator[Path]:
        """The absolute paths in `folder` that match `pattern`, sorted."""
        with suppress(OSError):
            yield from (
                Path("/") / found.relative_to(self.root)
                for found in sorted(self.path(folder).glob(pattern))
            )

    def ask(self, *argv: str) -> QueryOutput | None:
        """The output of a query, which runs once."""
        if argv not in self._answers:
            self._answers[argv] = self.query(argv)
        return self._answers[argv]

    def table(self, *argv: str) -> list[list[str]]:
        """The lines of a query's output, split at commas; empty if it fails."""
        output = self.ask(*argv)
        if output is None or output.status != 0:
            return []
        lines = (line.split(",") for line in output.text.splitlines() if line.strip())
        return [[cell.strip() for cell in line] for line in lines]

    @property
    def has_gpu(self) -> bool:
        """Whether an NVIDIA card is on the bus or its driver is loaded."""
        if self.exists("/proc/driver/nvidia/version"):
            return True
        return any(
            self.text(device / "vendor").strip() == "0x10de"
            and self.text(device / "class").startswith("0x03")
            for device in self.names("/sys/bus/pci/devices")
        )


def this_host(config_file: Path | None = None) -> Host:
    return Host(
        Path("/"),
        os.environ,
        _query,
        Path(sysconfig.get_paths()["purelib"]),
        config_file="" if config_file is None else str(config_file.absolute()),
    )


def _query(argv: Sequence[str]) -> QueryOutput | None:
    if (program := shutil.which(argv[0])) is None:
        return None
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_QUERY_S,
            check=False,
        )
        return QueryOutput(done.returncode, done.stdout.decode(errors="replace"))
    return None
