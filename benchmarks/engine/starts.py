"""`python -m benchmarks.engine.starts SHAPE [--fp8]`: starts with and without compiling ahead.

Owns the comparison: an engine process from its start to its first answer, phase by phase. Both
kinds alternate, so that a slow minute of the host affects both. Every start but the last has an
empty kernel cache of its own; the last finds all kernels. Weights are random.
"""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.engine.run import Options, worker_config
from benchmarks.engine.start import StartTimes, measure_start
from workers.engine.compile.compile_ahead import SWITCH
from workers.engine.compile.kernel_cache import CACHE_VARIABLE

_ROUNDS: Final = 2


def main() -> None:
    """Print a line per start, and its report on the kernels."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.starts")
    parser.add_argument("shape", nargs="?", default="qwen3-8b")
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    arguments = parser.parse_args()
    options = Options(arguments.shape, fp8=arguments.fp8, device=arguments.device)
    config = worker_config(options)
    with ExitStack() as caches:
        for name, environ in _starts(arguments.rounds, caches):
            print(_line(name, measure_start(config, environ)), flush=True)


def _starts(rounds: int, caches: ExitStack) -> Iterator[tuple[str, dict[str, str]]]:
    cache = ""
    for _ in range(rounds):
        for name, switch in (("one by one", "off"), ("ahead", "on")):
            cache = caches.enter_context(TemporaryDirectory())
            yield f"nothing cached, compiled {name}", {CACHE_VARIABLE: cache, SWITCH: switch}
    yield "all cached", {CACHE_VARIABLE: cache}


def _line(name: str, started: StartTimes) -> str:
    phases = ", ".join(f"{phase} {took:.2f}" for phase, took in started.phases.items())
    text = f"{name}: {started.seconds:.2f} s ({phases})"
    return f"{text}\n    {started.details.get('warm-up', '')}"


if __name__ == "__main__":
    main()
