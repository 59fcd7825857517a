"""Checks and times every variant of every case, and prints the table.

Owns the order of work and the results' format: one dictionary per case with `case`, `floor_us`,
`times_us` by variant (peers among them), `best`, `peers` and `wrong` by variant.
"""

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import torch
from triton.errors import TritonError

from benchmarks.kernels import timing
from benchmarks.kernels.case import KernelCase, copied

FAILURES = (
    TritonError,
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
)
"""The errors of a configuration that does not fit the card or its kernel: one line of the table."""

_NEVER_ENDED = "crashed, or stands behind one that did"
_ERROR_CHARS = 160

Verdicts = dict[tuple[str, str], str]


def load(name: str, device: str) -> list[KernelCase]:
    """The cases of one benchmark module."""
    module = importlib.import_module(f"benchmarks.kernels.{name}")
    return list(module.cases(torch.device(device)))


def check(
    cases: Sequence[KernelCase], shard: int, shards: int
) -> Iterator[tuple[tuple[str, str], str]]:
    """((case, variant), its error or "") of every `shards`-th variant from `shard` on."""
    number = 0
    for case in cases:
        mine = [v for i, v in enumerate(case.variants, number) if i % shards == shard]
        number += len(case.variants)
        if not mine:
            continue
        torch.manual_seed(len(case.name))
        inputs = case.make()
        expected = case.expected(*copied(inputs))
        for variant in mine:
            try:
                answer = variant.run(*copied(inputs))
                accept = variant.accept or case.accept
                wrong = accept(answer, expected) if variant.checked else None
            except FAILURES as error:
                wrong = _error_text(error)
            yield (case.name, variant.name), wrong or ""


def print_checks(cases: Sequence[KernelCase], shard: int, shards: int) -> None:
    """`check`, as lines of JSON for the parent process."""
    for (case, variant), wrong in check(cases, shard, shards):
        print(json.dumps([case, variant, wrong]))
        sys.stdout.flush()


def measure(
    cases: Sequence[KernelCase], verdicts: Verdicts, *, timed: bool, parts: bool = False
) -> list[dict[str, Any]]:
    """Time the variants that passed, and with `parts` the kernels of the best. Prints a line per
    case and one per wrong variant.
    """
    results = []
    for case in cases:
        said = {v.name: verdicts.get((case.name, v.name), _NEVER_ENDED) for v in case.variants}
        wrong = {name: what for name, what in said.items() if what}
        times_us = _times_us(case, wrong) if timed else {}
        ours = {
            v.name: times_us[v.name] for v in case.variants if v.name in times_us and not v.peer
        }
        result = {
            "case": case.name,
            "floor_us": round(timing.floor_us(case), 3),
            "times_us": times_us,
            "best": min(ours, key=lambda name: ours[name], default=None),
            "peers": [v.name for v in case.variants if v.peer],
            "wrong": wrong,
        }
        results.append(result)
        _print(result)
        if parts and result["best"] is not None:
            best = next(v for v in case.variants if v.name == result["best"])
            result["parts_us"] = timing.parts_us(best.run, case.make())
            for name, part_us in result["parts_us"].items():
                print(f"    {part_us:9.2f} us  {name[:80]}")
    return results


def _times_us(case: KernelCase, wrong: dict[str, str]) -> dict[str, float]:
    """The times by variant; variants that fail only while timed are added to `wrong`."""
    floor = timing.floor_us(case)
    torch.manual_seed(1)
    sets = timing.rotating_inputs(case)
    times_us = {}
    for variant in case.variants:
        if variant.name in wrong:
            continue
        try:
            took_us = timing.time_us(variant.run, sets, floor, is_chain=case.is_chain)
            times_us[variant.name] = round(took_us, 3)
        except FAILURES as error:
            wrong[variant.name] = _error_text(error)
    return times_us


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_ERROR_CHARS].replace("\n", " ")


def _print(result: dict[str, Any]) -> None:
    times_us, best, floor = result["times_us"], result["best"], result["floor_us"]
    line = f"{result['case']:40} "
    if best is not None:
        share = 100 * floor / times_us[best]
        line += f"{times_us[best]:9.2f} us {share:4.0f} % of floor  {best}"
    for peer in result["peers"]:
        if peer in times_us:
            line += f" | {peer} {times_us[peer]:.2f}"
    if not times_us:
        line += f"{len(result['wrong'])} wrong, nothing timed"
    print(line)
    for name, what in result["wrong"].items():
        print(f"    WRONG {name}: {what}")
    sys.stdout.flush()


def machine(device: str) -> str:
    """The card and the relevant versions."""
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU, interpreted"
    return f"{name}, torch {torch.__version__}, triton {version('triton')}"
