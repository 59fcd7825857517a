"""CUDA C++ becomes machine code, once: what was compiled lies in Triton's cache.

Owns the compiler's call and the key of a compilation, so that it can be done ahead like one of
Triton's (`kernels.recorder`). Must not know cards: no driver is needed to compile.
"""

import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, final

import msgspec
from triton import knobs
from triton.runtime.cache import get_cache_manager

from kernels.recorder import RecordedKernel, report

ARCH: Final = "ARCH"
"""The constant that names another card than Hopper: ten times its compute capability."""

_LANGUAGE: Final = "-std=c++17"
_HOPPER: Final = "--gpu-architecture=sm_90a"
"""The architecture with the matrix products of a warp group, which only Hopper has."""

Headers = Callable[[Mapping[str, int]], Mapping[str, str]]
"""What the source includes, by name, for these constants."""


class CompileError(RuntimeError):
    """The source is wrong, or there is no compiler; the text is its own."""


@final
class CudaSource:
    """A kernel `name` of the module `module`, to be found there under that name.

    `constants` of a call are its macros. It is compiled for Hopper, or for the card that the
    constant `ARCH` names.
    """

    arg_names: Final = ()

    def __init__(self, module: str, name: str, path: Path, headers: Headers) -> None:
        self.name = name
        self._module = module
        self.path = path
        self._headers = headers

    def record(self, constants: Mapping[str, int]) -> None:
        """Record that a launch on a pretended device would need this."""
        report(self._recorded(constants))

    def cubin(self, constants: Mapping[str, int]) -> bytes:
        """Machine code, from the cache or compiled now, some 0.5 s. Raises `CompileError`."""
        report(self._recorded(constants))
        return self._compiled(constants)

    def preload(self, specialisation: str) -> None:
        """Compile into the cache what `record` recorded. Raises `CompileError`."""
        self._compiled(msgspec.json.decode(specialisation, type=dict[str, int]))

    def _recorded(self, constants: Mapping[str, int]) -> RecordedKernel:
        words = msgspec.json.encode(constants, order="sorted").decode()
        return RecordedKernel(self._module, self.name, words)

    def _compiled(self, constants: Mapping[str, int]) -> bytes:
        macros = [f"-D{name}={value}" for name, value in sorted(constants.items())]
        options = [architecture(constants), _LANGUAGE, *macros]
        headers = self._headers(constants)
        source = self.path.read_text(encoding="utf-8")
        parts = [compiler_version(), source, *options, *headers, *headers.values()]
        kept = get_cache_manager(sha256("\0".join(parts).encode()).hexdigest())
        file_name = f"{self.name}.cubin"
        begun_at = time.perf_counter()
        found = kept.get_file(file_name)
        if found is None:
            cubin = _compile(source, self.path.name, options, headers)
            kept.put(cubin, file_name, binary=True)
        else:
            cubin = Path(found).read_bytes()
        seconds = time.perf_counter() - begun_at
        _count(self.name, cache_hit=found is not None, seconds=seconds)
        return cubin


def bits_of(number: float) -> int:
    """The bits of `number` as a float32, read as an integer."""
    bits: int = struct.unpack("i", struct.pack("f", number))[0]
    return bits


def architecture(constants: Mapping[str, int]) -> str:
    """The compiler's option for the card that `constants` name."""
    return f"--gpu-architecture=sm_{constants[ARCH]}" if ARCH in constants else _HOPPER


class _Times(msgspec.Struct):
    """The times of a compilation in Triton's form: microseconds."""

    total: float


def _count(name: str, *, cache_hit: bool, seconds: float) -> None:
    """Report this compilation to Triton's listener."""
    if (listener := knobs.compilation.listener) is not None:
        listener(
            src=name, metadata={}, metadata_group={}, times=_Times(1e6 * seconds),
            cache_hit=cache_hit,
        )  # fmt: skip


@cache
def compiler_version() -> str:
    """The compiler's version. Raises `CompileError` without a working compiler."""
    return _answer({"options": (_HOPPER, _LANGUAGE)}, "no compiler of CUDA C++").decode()


def _compile(source: str, name: str, options: list[str], headers: Mapping[str, str]) -> bytes:
    words = {"source": source, "name": name, "options": options, "headers": dict(headers)}
    return _answer(words, f"{name} {' '.join(options)}")


def _answer(words: Mapping[str, object], what: str) -> bytes:
    # Without the folder of that program on the path: our names there are not meant.
    command = [sys.executable, "-P", str(Path(__file__).with_name("nvrtc.py"))]
    said = msgspec.json.encode(words)
    done = subprocess.run(command, input=said, capture_output=True, check=False)
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}"
        raise CompileError(f"{what}: {why}")
    return done.stdout
