"""Writes data from a sweep: `python -m benchmarks.linear_table FILE...` prints a new `tuned.py`.

FILE is the output of `python -m benchmarks.kernels linear_sweep --json FILE` or `wide_sweep`;
figures of a later file replace earlier ones. A case's entry is its fastest variant, or None if the
library is faster by 2 %. With `--fp8` first it reads the output of `fp8_sweep` and prints a new
`tuned_fp8.py`. With `--onto` (behind `--fp8`) entries of sizes that were not measured stay.
"""

import json
import math
import re
import sys
from collections.abc import Collection
from pathlib import Path

from kernels.linear import tuned, tuned_fp8
from kernels.linear.choose import TUNED_ROWS, TUNED_ROWS_FP8

HEAD = '''"""Measured configurations{what}: exceptions to the rule of `choose`.

Owns data that `python -m benchmarks.linear_table{option}` writes; do not edit by hand. A key is the
operation, the rows (the next of 1, 2, 4, ... 256), and the weight's shape; None means the library.
Measured on {machine}.
"""

from typing import Final

from kernels.linear.config import Config, Gemv, Skinny{wide}

TUNED: Final[dict[tuple[str, int, int, int], Config | None]] = {{'''

_GAIN = 1.02

_KNOWN = re.compile(r'^ {4}\("(\w+)", (\d+), (\d+), (\d+)\): (.*),  # ([\d.]+) us$', re.MULTILINE)
_CASE = re.compile(r"(\w+) (\d+) x (\d+) T=(\d+)(?: fp8)?")


def main() -> None:
    """Print the module."""
    is_fp8 = sys.argv[1:2] == ["--fp8"]
    entries: dict[tuple[str, int, int, int], tuple[str, float]] = {}
    machine = ""
    is_onto = sys.argv[1 + is_fp8 :][:1] == ["--onto"]
    if is_onto:
        known = _KNOWN.findall(_known_text(is_fp8=is_fp8))
        for op, rows, num_weight_rows, depth, config, time_us in known:
            entries[op, int(rows), int(num_weight_rows), int(depth)] = config, float(time_us)
    for path in sys.argv[1 + is_fp8 + is_onto :]:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        machine = report["machine"]
        for result in report["results"]:
            if not result["times_us"] or result["case"].endswith("fp8") != is_fp8:
                continue
            key = _key(result["case"])
            if key[1] in (TUNED_ROWS_FP8 if is_fp8 else TUNED_ROWS):
                entries[key] = _best(result["times_us"], result["peers"])
    what, option = (" of weights in 8 bits", " --fp8") if is_fp8 else ("", "")
    wide = ", Wide" if any("Wide" in config for config, _ in entries.values()) else ""
    print(HEAD.format(machine=machine, what=what, option=option, wide=wide))
    for (op, rows, num_weight_rows, depth), (config, time_us) in entries.items():
        print(f'    ("{op}", {rows}, {num_weight_rows}, {depth}): {config},  # {time_us:.1f} us')
    print("}")


def _best(times_us: dict[str, float], peers: Collection[str]) -> tuple[str, float]:
    """The fastest variant and its time, as an entry. The library must be faster by `_GAIN`: unlike
    our kernels its own do not begin before the kernel ahead has ended, which matters in a step.
    """
    own = {name: time_us for name, time_us in times_us.items() if name not in peers}
    best = min(own, key=own.__getitem__, default="")
    library_us = min([times_us[name] for name in peers if name in times_us], default=math.inf)
    if not best or library_us < own[best] / _GAIN:
        return "None", library_us
    return best, own[best]


def _known_text(*, is_fp8: bool) -> str:
    return Path((tuned_fp8 if is_fp8 else tuned).__file__).read_text(encoding="utf-8")


def _key(case: str) -> tuple[str, int, int, int]:
    match = _CASE.fullmatch(case)
    if match is None:
        raise ValueError(f"not a case of the sweep: {case}")
    op, num_weight_rows, depth, rows = match.groups()
    return op, int(rows), int(num_weight_rows), int(depth)


if __name__ == "__main__":
    main()
