"""`herma bench engine`: from the command line to a run and its result file.

Owns which tests a name stands for. Must not know how they are made.
"""

import argparse
import json
from dataclasses import replace
from typing import Final

from benchmarks.engine.plot import plot_decode
from benchmarks.engine.run import ALL, TESTS, EngineReport, Options, run
from benchmarks.engine.trace import StepTrace
from protocol.errors import ConfigError

_SMOKE_SOAK_S: Final = 1.0


def run_command(arguments: argparse.Namespace) -> int:
    """Run, print, write. Returns 0 if every answer was right, 1 if one was wrong, 3 if nothing can
    be said of them. Raises `ConfigError`.
    """
    options = Options(
        model=arguments.model,
        dummy=arguments.dummy,
        fp8=arguments.fp8,
        int4=arguments.int4,
        head=arguments.head,
        embedding=arguments.embedding,
        prefill_fp8=arguments.prefill_fp8,
        invariant=arguments.invariant,
        tests=_tests(arguments.tests),
        device=arguments.device,
        seconds=arguments.seconds,
        batches=_numbers(arguments.batches),
        lengths=_numbers(arguments.lengths),
        runs=arguments.runs,
        requests=arguments.requests,
        kv_tokens=arguments.kv_tokens,
        checked=arguments.checked,
    )
    if "smoke" in options.tests:
        tests = (*ALL, "soak")
        options = replace(options, tests=tests, is_smoke=True, seconds=_SMOKE_SOAK_S)
    trace = None if arguments.trace is None else StepTrace()
    report = EngineReport(arguments.json)
    verdict = run(options, report, trace)
    if trace is not None:
        arguments.trace.write_text(f"{json.dumps(trace.as_json())}\n", encoding="utf-8")
    if arguments.plot is not None:
        plot_decode(report.parts, arguments.plot)
    return verdict.exit_status


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple([int(word) for word in text.split(",") if word])
    except ValueError:
        numbers = (0,)
    if any(number < 1 for number in numbers):
        raise ConfigError(f"{text!r} is not a list of numbers above 0, as in 1,8,64")
    return numbers


def _tests(text: str) -> tuple[str, ...]:
    if text == "all":
        return ALL
    names = tuple(text.split(","))
    for name in names:
        if name not in TESTS:
            raise ConfigError(f"there is no test {name!r}: all, or some of {', '.join(TESTS)}")
    return names
