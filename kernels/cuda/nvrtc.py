"""A program: CUDA C++ on stdin, machine code on stdout.

Owns the compiler's calls. A process of its own, and one that has imported nothing else: in forks of
one that knew torch and Triton this compiler (NVRTC 13.0) ended with a segmentation fault, which
must not happen in an engine. The input is JSON: `source`, `name`, `options`, `headers` by name;
with options only, the answer is the compiler's version, after it has compiled an empty source with
them. Errors go to stderr, with status 1.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cuda.bindings import nvrtc


def main() -> int:
    """Compile what stdin holds."""
    words = json.load(sys.stdin)
    headers = words.get("headers", {})
    name, source = words.get("name", "nothing.cu"), words.get("source", "")
    try:
        cubin = _compiled(source, name, words["options"], headers)
    except SyntaxError as error:
        sys.stderr.write(str(error))
        return 1
    if "source" not in words:
        _, major, minor = nvrtc.nvrtcVersion()
        cubin = f"NVRTC {major}.{minor}".encode()
    sys.stdout.buffer.write(cubin)
    return 0


def _compiled(source: str, name: str, options: Sequence[str], headers: Mapping[str, str]) -> bytes:
    """Raises `SyntaxError` in the compiler's words."""
    program = _done(
        nvrtc.nvrtcCreateProgram(
            source.encode(),
            name.encode(),
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        )
    )
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [x.encode() for x in options])
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytearray(_done(nvrtc.nvrtcGetProgramLogSize(program)))
        _done(nvrtc.nvrtcGetProgramLog(program, log))
        raise SyntaxError(log.rstrip(b"\0").decode(errors="replace"))
    cubin = bytearray(_done(nvrtc.nvrtcGetCUBINSize(program)))
    _done(nvrtc.nvrtcGetCUBIN(program, cubin))
    return bytes(cubin)


def _done(result: tuple[Any, ...]) -> Any:  # noqa: ANN401 -- the bindings are not typed
    error, *values = result
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {error!r}")
    return values[0] if values else None


if __name__ == "__main__":
    sys.exit(main())
