"""Measured configurations of weights in 8 bits: exceptions to the rule of `choose`.

Owns data that `python -m benchmarks.linear_table --fp8` writes; do not edit by hand. A key is the
operation, the rows (the next of 1, 2, 4, ... 128), and the weight's shape; None means the library.
Nothing is measured yet.
"""

from typing import Final

from kernels.linear.config import Config

TUNED: Final[dict[tuple[str, int, int, int], Config | None]] = {}
