"""Proves what can be proved of a version before a running service is stopped for it.

Owns the commands and the parsing of their output: its program, its imports, its view of the
configuration and the host, its ranks. Must not know running workers.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from herma.upgrade import collectives
from herma.upgrade.install import image_runner
from herma.upgrade.workers import VersionRejected
from housekeeping.own_code import CODE_VARIABLES, HELD
from protocol.messages import PROTOCOL_VERSION

_PATIENCE_S: Final = 300.0
_MODULES: Final = {"vllm": "vllm", "sglang": "sglang"}
"""What an engine's environment must import, by the kind of engine."""
_OWN: Final = ("--name", "-p", "--publish", "--restart", "--cidfile", "--ip", "--entrypoint")
"""Options of a container that have a value and that a second container must not repeat."""
_DETACHED: Final = ("-d", "--detach")
_MOUNT: Final = "/herma-smoke"
_RANK_FLAGS: Final = ("--tensor-parallel-size", "-tp", "--tp", "--tp-size")
_TORCH: Final = """
import json
try:
    import torch
except ImportError:
    print("null")
else:
    found = torch.cuda.is_available(), torch.cuda.device_count()
    print(json.dumps([torch.__version__, *found]))
"""
_PROTOCOL: Final = "from protocol.messages import PROTOCOL_VERSION; print(PROTOCOL_VERSION)"


@dataclass(frozen=True, slots=True)
class Smoke:
    """The tests. `say` receives a line for each proof; `environ` is the environment of the
    commands.
    """

    say: Callable[[str], None]
    environ: Mapping[str, str]

    def herma(self, new: Path, old: Path, configs: Sequence[Path]) -> None:
        """Test Herma's environment `new` against `old`, which runs. Raises `VersionRejected`."""
        entry, python = str(new / "bin" / "herma"), str(new / "bin" / "python")
        self.say(f"it is {self._run([entry, '--version'], 'it does not start')}")
        spoken = self._run([python, "-c", _PROTOCOL], "its protocol is not known")
        if spoken != str(PROTOCOL_VERSION):
            raise VersionRejected(
                f"it speaks protocol {spoken}, what runs here {PROTOCOL_VERSION}: they cannot "
                "serve side by side; stop everything and start it anew"
            )
        for path in configs:
            self._run([entry, "config", "check", str(path)], f"it does not take {path}")
        self._torch(new, old)
        self.doctor(entry, str(old / "bin" / "herma"), configs)

    def environment(self, new: Path, old: Path | None, kind: str, argv: Sequence[str]) -> None:
        """Test an engine's environment. Raises `VersionRejected`."""
        if kind in _MODULES:
            module, python = _MODULES[kind], str(new / "bin" / "python")
            code = f"import {module}; print({module}.__version__)"
            version = self._run([python, "-c", code], f"it cannot import {module}")
            self.say(f"{module} {version} can be imported")
        if old is not None:
            self._torch(new, old)
        if (ranks := ranks_of(argv)) > 1:
            self.collectives(new, ranks)

    def image(self, reference: str, old: str, kind: str, argv: Sequence[str]) -> None:
        """Test an engine's image; `argv` starts the `old` one, with the options that it needs.
        Raises `VersionRejected`.
        """
        if kind in _MODULES:
            words = [*in_container(argv, old, "python3"), reference, "-c"]
            self._run([*words, f"import {_MODULES[kind]}"], f"it cannot import {_MODULES[kind]}")
            self.say(f"{_MODULES[kind]} can be imported")
        if (ranks := ranks_of(argv)) > 1:
            with _collectives_alone() as script:
                mount = ["-v", f"{script.parent}:{_MOUNT}:ro"]
                words = [*in_container(argv, old, "python3"), *mount, reference]
                self._judge_ranks(self._done([*words, f"{_MOUNT}/{script.name}", str(ranks)]))

    def command(self, words: Sequence[str]) -> None:
        """Run a command of the operator's. Raises `VersionRejected` if it fails."""
        self._run(words, f"`{' '.join(words)}` failed")

    def collectives(self, new: Path, ranks: int) -> None:
        """Test several ranks on this host. Raises `VersionRejected`; full cards prove nothing."""
        with _collectives_alone() as script:
            self._judge_ranks(self._done([str(new / "bin" / "python"), str(script), str(ranks)]))

    def _judge_ranks(self, done: "subprocess.CompletedProcess[str]") -> None:
        line = (done.stdout or done.stderr).strip().rpartition("\n")[2]
        if done.returncode == collectives.FULL:
            self.say(f"not proved, for the cards are full: {line}")
        elif done.returncode:
            raise VersionRejected(f"its ranks do not work together: {line}")
        else:
            self.say(line)

    def _torch(self, new: Path, old: Path) -> None:
        """Reject a torch built without CUDA, which would run on the CPU, or not at all."""
        before, now = (self._torch_of(each) for each in (old, new))
        if before is not None and before[1] and (now is None or not now[1]):
            raise VersionRejected(
                f"its torch {now[0] if now else '(none)'} finds no card, and the {before[0]} that "
                f"runs finds {before[2]}: it is a build for CPUs, or for another driver"
            )

    def _torch_of(self, environment: Path) -> list[Any] | None:
        python = environment / "bin" / "python"
        if not python.exists():
            return None
        output = self._run([str(python), "-c", _TORCH], "its torch is broken")
        found: list[Any] | None = json.loads(output.splitlines()[-1])
        return found

    def doctor(self, new: str, old: str, configs: Sequence[Path]) -> None:
        """Reject a version whose doctor reports errors that the `old` one's does not. Raises
        `VersionRejected`.
        """
        for words in [["--config", str(path)] for path in configs] or [[]]:
            known = set(self._errors([old, "doctor", "--json", *words]))
            for check, what in self._errors([new, "doctor", "--json", *words]):
                if (check, what) not in known:
                    raise VersionRejected(f"its doctor finds an error: {check}: {what}")

    def _errors(self, words: Sequence[str]) -> Iterator[tuple[str, str]]:
        done = self._done(words)
        try:
            findings = json.loads(done.stdout)
        except ValueError as error:
            raise VersionRejected(
                f"`{' '.join(words)}` failed: {done.stderr.strip()[-400:]}"
            ) from error
        for finding in findings:
            if finding["level"] == "error":
                yield finding["check"], finding["what"]

    def _run(self, words: Sequence[str], failure: str) -> str:
        done = self._done(words)
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise VersionRejected(
                f"{failure}: {lines[-1] if lines else f'status {done.returncode}'}"
            )
        return done.stdout.strip()

    def _done(self, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run a command in a folder without a checkout, and as its own version."""
        environ = {
            name: value for name, value in self.environ.items() if name not in CODE_VARIABLES
        }
        environ[HELD] = ""
        try:
            return subprocess.run(
                words,
                check=False,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                env=environ,
                cwd=os.sep,
                timeout=_PATIENCE_S,
            )
        except OSError as error:
            raise VersionRejected(f"{words[0]} cannot run: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise VersionRejected(
                f"`{' '.join(words)}` has not ended in {_PATIENCE_S:g} s"
            ) from error


@contextmanager
def _collectives_alone() -> Iterator[Path]:
    """The script in a folder of its own, because Python first finds modules beside a script."""
    with TemporaryDirectory() as folder:
        yield Path(shutil.copy(collectives.__file__, folder))


def in_container(argv: Sequence[str], image: str, program: str) -> list[str]:
    """The words of a launch up to its `image`, changed to run `program`: with its cards and shared
    memory, without the options that only one container can have.
    """
    runner = next((at for at, word in enumerate(argv) if word == image), 0)
    kept: list[str] = []
    words = iter(argv[:runner])
    for word in words:
        if word in _OWN:
            next(words, None)
        elif word not in _DETACHED and word.partition("=")[0] not in _OWN:
            kept.append(word)
    return [*(kept or [image_runner(argv), "run", "--rm"]), "--entrypoint", program]


def ranks_of(argv: Sequence[str]) -> int:
    """The number of ranks that an engine's command line starts on this host, as far as its flags
    say.
    """
    for flag, value in zip(argv, (*argv[1:], ""), strict=False):
        name, _, given = flag.partition("=")
        if name in _RANK_FLAGS and (given or value).isdigit():
            return int(given or value)
    return 1
