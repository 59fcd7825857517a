"""`python -m benchmarks.engine.mixtures [SHAPE:MODE ...]`: decodes and first tokens of mixtures of
experts, in minutes of one card.

Runs `herma bench engine` with drawn weights and drawn experts for each shape and mode, in a process
of its own, and prints its table as it ends. First it compiles the kernels of all of them at once.
With `--out DIR` reports and outputs are kept there. `--limit S` bounds all together: what does not
fit is cut off, and its report holds the figures so far. Ends with 1 if one was wrong or did not
finish. Owns which runs there are; must not know how a run measures.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.engine.run import Options, worker_config
from workers.engine.compile.compile_ahead import compiler_command
from workers.engine.compile.compiler_messages import encode_line
from workers.engine.compile.compute_capability import compute_capability
from workers.model_dir import local_dir

NAMES: Final = (
    "qwen3-30b-a3b:bf16",
    "qwen3-30b-a3b:fp8",
    "gpt-oss-20b:mxfp4",
    "qwen3.6-35b-a3b:bf16",
)
"""What the bars are for; any other shape of a mixture may be named too."""

MODES: Final[Mapping[str, dict[str, Any]]] = {
    "bf16": {},
    "mxfp4": {},
    "fp8": {"fp8": True},
    "int4": {"int4": True},
}
_KV_TOKENS: Final = 49_152
"""The tokens of the cache: room for 64 sequences of 384 tokens and one of 8,224 at the largest
window.
"""

_LEAST_S: Final = 20.0
"""A run that has less time left is not begun."""


def main() -> int:
    """Print a table for each; 0 if all are right."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.mixtures")
    parser.add_argument("names", nargs="*", metavar="SHAPE:MODE", default=NAMES)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/mixtures"))
    parser.add_argument("--limit", type=float, default=280.0, metavar="S", help="of all; 280")
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--lengths", default="8192", help="prompt tokens of first tokens")
    parser.add_argument("--tests", default="decode,first-token")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--checked", type=int, default=1, help="answers of each test to check")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    end_at = time.monotonic() + arguments.limit
    for name in arguments.names:
        if name.partition(":")[2] not in MODES:
            parser.error(f"{name}: SHAPE:MODE, of the modes {', '.join(MODES)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.device != "cpu":
        _compile(arguments, end_at)
    return max([_run(name, arguments, end_at) for name in arguments.names], default=0)


def _options(name: str, arguments: argparse.Namespace) -> Options:
    shape, _, mode = name.partition(":")
    batches = tuple(map(int, arguments.batches.split(",")))
    return Options(
        shape, dummy=True, device=arguments.device, batches=batches, kv_tokens=_KV_TOKENS,
        **MODES[mode],
    )  # fmt: skip


def _compile(arguments: argparse.Namespace, end_at: float) -> None:
    """Compile the kernels of all runs into the cache: each run then finds them."""
    began_at = time.monotonic()
    arch = compute_capability(arguments.device)
    if arch is None:
        return
    started: list[subprocess.Popen[bytes]] = []
    for name in arguments.names:
        config = worker_config(_options(name, arguments))
        compiler = subprocess.Popen(
            compiler_command(arch), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        assert compiler.stdin is not None
        compiler.stdin.write(encode_line(config) + encode_line(str(local_dir(config.model))))
        compiler.stdin.close()
        started.append(compiler)
    for compiler in started:
        try:
            compiler.wait(max(1.0, end_at - time.monotonic() - _LEAST_S))
        except subprocess.TimeoutExpired:
            compiler.kill()
            compiler.wait()
    statuses = [compiler.returncode for compiler in started]
    print(f"kernels: {time.monotonic() - began_at:.0f} s, compilers ended with {statuses}")


def _run(name: str, arguments: argparse.Namespace, end_at: float) -> int:
    report, log = (arguments.out / f"{name.replace(':', '_')}.{kind}" for kind in ("json", "log"))
    report.unlink(missing_ok=True)
    began_at = time.monotonic()
    if end_at - began_at < _LEAST_S:
        print(f"\n{name}: no time is left", flush=True)
        return 1
    status: int | str
    with log.open("w", encoding="utf-8") as file:
        try:
            status = subprocess.run(
                _argv(name, arguments, report), stdout=file, stderr=subprocess.STDOUT,
                timeout=end_at - began_at, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            status = "cut off"
    print(f"\n{name}: ended with {status} after {time.monotonic() - began_at:.0f} s")
    parts = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    print(_table(parts) if status == 0 or parts.get("figures") else _last_lines(log), flush=True)
    return int(status != 0)


def _argv(name: str, arguments: argparse.Namespace, report: Path) -> list[str]:
    options = _options(name, arguments)
    forms = [f"--{form}" for form in ("fp8", "int4") if getattr(options, form)]
    return [
        sys.executable, "-m", "herma", "bench", "engine", "--model", options.model, "--dummy",
        *forms, "--tests", arguments.tests, "--batches", arguments.batches, "--lengths",
        arguments.lengths, "--runs", str(arguments.runs), "--kv-tokens", str(options.kv_tokens),
        "--checked", str(arguments.checked), "--device", arguments.device, "--json", str(report),
    ]  # fmt: skip


def _table(parts: Mapping[str, Any]) -> str:
    """The figures that a report holds, beside the floor by the copy bandwidth of its run."""
    lines = [
        "| test | ours | floor | times | experts | uniform | |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in parts.get("figures", []):
        found, expected = one["experts"] or ("", "")
        floor = one["floor"]
        cells = (
            one["name"],
            f"{one['value']:.2f} {one['unit']}",
            "" if floor is None else f"{floor:.2f}",
            "" if floor is None else f"{one['value'] / floor:.2f}",
            *(f"{each:.1f}" if each else "" for each in (found, expected)),
            "" if one["counts"] else "does not count",
        )
        lines.append(f"| {' | '.join(cells)} |")
    ceiling = parts.get("ceiling") or {}
    copied = ceiling.get("bandwidth", 0) / 1e12
    checks = [one["is_right"] for one in parts.get("checks", [])]
    lines.append(
        f"{parts.get('machine', {}).get('device')}: copies {copied:.2f} TB/s; "
        f"{sum(checks)} of {len(checks)} checked answers right; {parts.get('doubt') or 'no doubt'}"
    )
    return "\n".join([*lines, *map(str, parts.get("wrong", []))])


def _last_lines(log: Path) -> str:
    lines: Sequence[str] = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-15:])


if __name__ == "__main__":
    sys.exit(main())
