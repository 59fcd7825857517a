"""`python -m benchmarks.kernels [names]`: checks the kernels on this card and times them.

Every module of this package with `cases(device)` is a benchmark. First all variants of all cases
are compiled and compared with the expected answer, in `--jobs` processes at once (Triton keeps
compiled kernels on disk, and a crash ends only its process). Then the variants that passed are
timed in this process, one after the other. With `--device cpu` the cases are small, the kernels run
in Triton's interpreter, and nothing is timed. Ends with 1 if any check failed.
"""

import argparse
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import benchmarks.kernels as package
from benchmarks.result_file import result_file


def main() -> int:
    """Check, time, print a table; write every figure if asked."""
    arguments = _arguments()
    if arguments.device == "cpu":
        # Before anything imports Triton.
        os.environ["TRITON_INTERPRET"] = "1"
    from benchmarks.kernels import sweep  # noqa: PLC0415 - not before that line

    started_at = time.perf_counter()
    names = arguments.names or _names()
    cases = [
        case
        for name in names
        for case in sweep.load(name, arguments.device)
        if arguments.case in case.name
    ]
    if arguments.shard is not None:
        index, count = map(int, arguments.shard.split("/"))
        sweep.print_checks(cases, index, count)
        return 0
    verdicts = (
        _check_in_processes(arguments, names) if arguments.jobs else dict(sweep.check(cases, 0, 1))
    )
    print(f"checked {len(verdicts)} variants after {time.perf_counter() - started_at:.1f} s")
    is_card = arguments.device != "cpu"
    results = sweep.measure(cases, verdicts, timed=is_card, parts=arguments.parts and is_card)
    print(f"done after {time.perf_counter() - started_at:.1f} s; {sweep.machine(arguments.device)}")
    if arguments.json is not None:
        report = {
            "machine": sweep.machine(arguments.device),
            "sweep": " ".join(names),
            "date": datetime.now(UTC).date().isoformat(),
            "results": results,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if any(result["wrong"] for result in results) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(_names()))
    parser.add_argument("--case", default="", metavar="TEXT", help="only cases with it in the name")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--jobs", type=int, default=0, help="processes that compile; 0: none")
    parser.add_argument("--parts", action="store_true", help="time each kernel of the best too")
    parser.add_argument("--json", type=result_file, metavar="FILE")
    parser.add_argument("--shard", help=argparse.SUPPRESS)
    return parser.parse_args()


def _names() -> list[str]:
    tools = {"__main__", "case", "sweep", "timing"}
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in tools)


def _check_in_processes(
    arguments: argparse.Namespace, names: list[str]
) -> dict[tuple[str, str], str]:
    """(case, variant) -> its error, or "". Variants whose process crashed are missing."""
    verdicts: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as directory:
        outputs = [Path(directory, f"shard{index}") for index in range(arguments.jobs)]
        command = [sys.executable, "-m", "benchmarks.kernels", *names, "--case", arguments.case]
        command += ["--device", arguments.device]
        children = []
        for index, output in enumerate(outputs):
            shard = ["--shard", f"{index}/{arguments.jobs}"]
            with output.open("w", encoding="utf-8") as file:
                children.append(subprocess.Popen(command + shard, stdout=file))
        for child, output in zip(children, outputs, strict=True):
            child.wait()
            for line in output.read_text(encoding="utf-8").splitlines():
                case, variant, wrong = json.loads(line)
                verdicts[case, variant] = wrong
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
