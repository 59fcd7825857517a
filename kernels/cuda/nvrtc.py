"""A program: CUDA C++ on stdin, machine code on stdout.

Owns the compiler's calls. A process of its own, and one that has imported nothing else: in forks of
one that knew torch and Triton this compiler (NVRTC 13.0) ended with a segmentation fault, which
must happen to nobody's engine. What is read is JSON: `source`, `name`, `options`, `headers` by
name; of nothing the answer is the compiler's version. What is wrong stands on stderr, and the
status is 1.
"""

import json
import sys
from typing import Any

from cuda.bindings import nvrtc


def main() -> int:
    """Do what stdin says."""
    words = json.load(sys.stdin)
    if not words:
        _, major, minor = nvrtc.nvrtcVersion()
        print(f"NVRTC {major}.{minor}", end="")
        return 0
    headers: dict[str, str] = words["headers"]
    program = _done(
        nvrtc.nvrtcCreateProgram(
            words["source"].encode(),
            words["name"].encode(),
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        )
    )
    options = [option.encode() for option in words["options"]]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytearray(_done(nvrtc.nvrtcGetProgramLogSize(program)))
        _done(nvrtc.nvrtcGetProgramLog(program, log))
        sys.stderr.write(log.rstrip(b"\0").decode(errors="replace"))
        return 1
    cubin = bytearray(_done(nvrtc.nvrtcGetCUBINSize(program)))
    _done(nvrtc.nvrtcGetCUBIN(program, cubin))
    sys.stdout.buffer.write(cubin)
    return 0


def _done(result: tuple[Any, ...]) -> Any:  # noqa: ANN401 -- the bindings are not typed
    error, *values = result
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {error!r}")
    return values[0] if values else None


if __name__ == "__main__":
    sys.exit(main())
