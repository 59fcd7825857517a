"""Measured configurations: exceptions to the rule of `choose`.

Owns data that `python -m benchmarks.linear_table` writes; do not edit by hand. A key is the
operation, the rows (the next of 1, 2, 4, ... 64), and the weight's shape; None means the library.
"""

from typing import Final

from kernels.linear.config import Config

TUNED: Final[dict[tuple[str, int, int, int], Config | None]] = {}
