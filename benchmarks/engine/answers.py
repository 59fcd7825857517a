"""`python -m benchmarks.engine.answers [SHAPE:MODE ...]`: are the tokens of every mode right?

Runs the decodes of `herma bench engine` at batch 1, 8 and 64 for each shape and mode, each in a
process of its own, and prints a line as each ends: its verdict, milliseconds per step, and the
check's noise. With `--out DIR` the reports and outputs are kept there. Ends with 1 if one is wrong
or did not finish, else with 3 if of one nothing is said. Owns which modes there are; must not know
how a run measures or judges.

Drawn weights, and keys and values of as many tokens as the decodes need, so that a 27B in 16 bits
fits beside its check.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.engine.verdict import AnswerVerdict

SHAPES: Final = ("qwen3.6-27b", "qwen3-8b", "qwen3-0.6b")
MODES: Final[Mapping[str, tuple[str, ...]]] = {
    "fp8": ("--fp8",),
    "int4": ("--int4",),
    "int4-head": ("--int4", "--head", "int4"),
    "bf16": (),
}
BATCHES: Final = (1, 8, 64)
_SAID: Final = {verdict.exit_status: verdict for verdict in AnswerVerdict}
_KV_TOKENS: Final = 40_000
"""64 sequences of 384 tokens, in whole blocks."""


def main() -> int:
    """Print a line for each; 0 if all are right."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.answers")
    every = [f"{shape}:{mode}" for mode in MODES for shape in SHAPES]
    parser.add_argument("names", nargs="*", metavar="SHAPE:MODE", help=f"of {', '.join(every)}")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/answers"))
    parser.add_argument("--limit", type=float, default=300.0, metavar="S", help="of each; 300")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(every):
        parser.error(f"{sorted(unknown)}: some of {', '.join(every)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    found = [_run(name, arguments.out, arguments.limit) for name in arguments.names or every]
    return (
        AnswerVerdict.WRONG.exit_status if AnswerVerdict.WRONG.exit_status in found else max(found)
    )


def _run(name: str, out: Path, limit_s: float) -> int:
    shape, _, mode = name.partition(":")
    report, log = (out / f"{shape}_{mode}.{kind}" for kind in ("json", "log"))
    argv = [
        sys.executable, "-m", "herma", "bench", "engine", "--model", shape, "--dummy",
        *MODES[mode], "--tests", "decode", "--batches", ",".join(map(str, BATCHES)),
        "--runs", "1", "--kv-tokens", str(_KV_TOKENS), "--json", str(report),
    ]  # fmt: skip
    report.unlink(missing_ok=True)
    began_at = time.perf_counter()
    with log.open("w", encoding="utf-8") as file:
        try:
            status: int | str = subprocess.run(
                argv, stdout=file, stderr=subprocess.STDOUT, timeout=limit_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = f"cut off after {limit_s:.0f} s"
    took_s = time.perf_counter() - began_at
    parts = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    print(f"{name:22} {_verdict(status, parts):13} {_figures(parts)}  {took_s:.0f} s", flush=True)
    is_said = parts.get("finished", False) and status in _SAID
    return int(status) if is_said else AnswerVerdict.WRONG.exit_status


def _verdict(status: int | str, parts: dict[str, Any]) -> str:
    if not parts.get("finished") or status not in _SAID:
        return f"ENDED {status}"
    verdict = _SAID[status]
    return f"WRONG {len(parts['wrong'])}" if verdict is AnswerVerdict.WRONG else verdict.value


def _figures(parts: dict[str, Any]) -> str:
    figures = [f"{one['value']:.2f}" for one in parts.get("figures", [])]
    noise = [100 * one["noise"] for one in parts.get("checks", [])]
    said = (
        f", noise {min(noise):.1f} to {max(noise):.1f} % of {len(noise)} answers" if noise else ""
    )
    return f"{' / '.join(figures) or 'no figures'} ms/step{said}"


if __name__ == "__main__":
    sys.exit(main())
