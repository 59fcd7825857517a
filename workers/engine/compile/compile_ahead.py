"""The engine's side of compiling ahead: it starts the compiler, and waits for listed kernels.

Owns the compiler's process and its reports. When the engine is about to compile a kernel that the
compiler has listed, the engine waits for the compiler; it compiles all other kernels itself. So
nothing depends on the compiler: it may fail, or miss a kernel. Must not import torch before the
engine does.
"""

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import msgspec

from config import WorkerConfig
from housekeeping.own_code import module_argv
from workers.engine.compile.compiler_messages import (
    CompilerMessage,
    Listed,
    Ready,
    decode_line,
    encode_line,
)
from workers.engine.compile.compute_capability import compute_capability
from workers.engine.compile.kernel_cache import Extent, is_complete

if TYPE_CHECKING:
    from kernels.recorder import RecordedKernel

SWITCH: Final = "HERMA_COMPILE_AHEAD"
"""The variable that switches compiling ahead off: with `off` every kernel is compiled when it
is first launched.
"""

_SILENCE_S: Final = 60.0
"""After so long without a message the engine stops waiting for the compiler. A kernel takes 2 s,
the import of torch 5 s."""


def start_compiling(config: WorkerConfig) -> "CompileAhead | None":
    """Start to compile the kernels of this worker's start; None if there is no card or nothing left
    to compile. Call it in the main thread: the compiler ends when that thread does.
    """
    if os.environ.get(SWITCH) == "off" or os.environ.get("HERMA_KERNELS") == "reference":
        return None
    arch = compute_capability(config.device)
    if arch is None or is_complete(config, arch):
        return None
    try:
        has_first = is_complete(config, arch, Extent.FIRST)
        return CompileAhead(compiler_command(arch), config, has_first=has_first)
    except OSError as error:
        print(f"kernels are not compiled ahead: {error}", file=sys.stderr)
        return None


def compiler_command(arch: int) -> list[str]:
    """The command of a compiler for cards of compute capability `arch`, a child of this process."""
    command = module_argv("workers.engine.compile.compiler")
    return [*command, "--arch", str(arch), "--parent", str(os.getpid())]


@final
class CompileAhead:
    """A running compiler. `wait` is called in the engine's thread, messages come in another."""

    def __init__(
        self, command: list[str], config: WorkerConfig, *, has_first: bool = False
    ) -> None:
        """`has_first`: the cache holds all kernels up to the first answer. Then the engine does not
        wait for the compiler's list, which takes seconds and names only later kernels.
        """
        self._has_first = has_first
        self.num_compiled = 0
        self.num_found = 0
        self.num_left = 0
        self.compile_s = 0.0
        self.waited_s = 0.0
        self.errors: list[str] = []
        self._processes = 0
        self._listed: frozenset[str] | None = None
        self._ready: set[str] = set()
        self._is_over = False
        self._changed = threading.Condition()
        # The compiler must find no card: its imports would make a context there.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._send(config)
        self._listener = threading.Thread(target=self._listen, name="compiler", daemon=True)
        self._listener.start()

    def model_is_at(self, model_dir: Path) -> None:
        """Send the last message to the compiler: it cannot resolve models of the hub itself."""
        self._send(str(model_dir))
        with suppress(BrokenPipeError):
            self._stdin.close()

    def stop(self) -> None:
        """End the compiler, because the engine uses no card."""
        self._process.kill()

    def watch(self) -> None:
        """From now on `wait` for each kernel that this process is about to compile."""
        from kernels.recorder import on_compile  # noqa: PLC0415 -- torch and Triton

        on_compile(self.wait)

    def wait(self, kernel: "RecordedKernel") -> bool:
        """Wait until the compiler is done with `kernel`, will not compile it, or has ended. Always
        returns False, which tells Triton to go on.
        """
        begun_at = time.perf_counter()
        with self._changed:
            while not self._is_settled(kernel.id):
                if not self._changed.wait(_SILENCE_S):
                    self._is_over = True
                    self.errors.append(f"no message for {_SILENCE_S:.0f} s")
            if kernel.id not in self._ready:
                self.num_left += 1
        self.waited_s += time.perf_counter() - begun_at
        return False

    def summary(self) -> str:
        """One line for people."""
        with self._changed:
            text = (
                f"ahead by {self._processes} processes {self.num_found} found, "
                f"{self.num_compiled} compiled in {self.compile_s:.1f} s, "
                f"{self.num_left} left to the engine, waited {self.waited_s:.1f} s"
            )
            rest = f" and {len(self.errors) - 1} more" if len(self.errors) > 1 else ""
            return f"{text}; {self.errors[0]}{rest}" if self.errors else text

    def _is_settled(self, kernel_id: str) -> bool:
        if self._is_over or kernel_id in self._ready:
            return True
        if self._listed is None:
            return self._has_first
        return kernel_id not in self._listed

    def _send(self, message: WorkerConfig | str) -> None:
        with suppress(BrokenPipeError):  # the compiler has ended; the listener reports that
            self._stdin.write(encode_line(message))
            self._stdin.flush()

    def _listen(self) -> None:
        """Read messages until the compiler ends or a line is invalid (it died within one)."""
        with self._stdout as lines:
            for line in lines:
                try:
                    message = decode_line(line)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    self._process.kill()
                    with self._changed:
                        self.errors.append(f"not a word of the compiler: {error}")
                    break
                with self._changed:
                    self._receive(message)
                    self._changed.notify_all()
        status = self._process.wait()
        with self._changed:
            self._is_over = True
            if status and not self.errors:
                self.errors.append(f"the compiler ended with status {status}: see the log")
            self._changed.notify_all()

    def _receive(self, message: CompilerMessage) -> None:
        match message:
            case Listed(ids=ids, processes=processes):
                self._listed = frozenset(ids)
                self._processes = processes
            case Ready(error=""):
                self._ready.add(message.id)
                self.num_found += message.found
                self.num_compiled += not message.found
                self.compile_s += 0.0 if message.found else message.seconds
            case Ready():
                # The engine itself will meet the same error when it compiles this kernel.
                self._ready.add(message.id)
                self.errors.append(f"{message.name}: {message.error}")
