"""Finds the best tiles of `kernels.delta_rule` at the 27B's sizes: one at a time differs.

`python -m benchmarks.kernels delta_sweep --jobs 16 --parts`: the best of each case by kernel, too;
`--json FILE` has the times of all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Variant
from benchmarks.kernels.delta_rule import EPS, SIZES, drawn_layer, mixed
from kernels.delta_rule import DeltaState
from kernels.delta_rule.device import STEP_TILES, StepTiles, decode
from kernels.delta_rule.prompts import TILES, Tiles, prompts

_PROMPTS = (8192, 2048, 300, 32)
_DECODES = (256, 64, 8, 1)
_TILES = (
    TILES,
    TILES._replace(scan_stages=2),
    TILES._replace(scan_warps=8),
    TILES._replace(scan_values=32),
    TILES._replace(scan_values=32, scan_stages=2),
    TILES._replace(system_registers=168),
    TILES._replace(merge="tf32x3"),
    *[TILES._replace(conv_run=run) for run in (4, 16)],
    TILES._replace(conv_warps=8),
    *[TILES._replace(norm_rows=rows) for rows in (8, 32)],
)
_STEP_TILES = (
    STEP_TILES,
    StepTiles(8, 168),
    StepTiles(16, 64),
    StepTiles(16, 128),
    StepTiles(4, 255),
)


def cases(device: torch.device) -> Iterator[Case]:
    """Prompts of one sequence, and decodes; none off CUDA."""
    if device.type != "cuda":
        return
    for length in _PROMPTS:
        case = mixed(f"prompt {length}", [length], SIZES, device)
        yield replace(case, variants=[_variant([length], tiles, device) for tiles in _TILES])
    for num in _DECODES:
        case = mixed(f"decode {num}", [1] * num, SIZES, device)
        yield replace(case, variants=[_variant([1] * num, tiles, device) for tiles in _STEP_TILES])


def _variant(lengths: Sequence[int], tiles: Tiles | StepTiles, device: torch.device) -> Variant:
    """Prompts or decodes of these lengths, as the tiles say."""
    given = cache(lambda: drawn_layer(lengths, SIZES, device))

    def run(rows: Tensor, gates: Tensor, matrices: Tensor, tails: Tensor) -> tuple[Tensor, ...]:
        out = rows.new_empty(len(rows), SIZES.value_columns)
        state, layer = DeltaState(matrices, tails), given()
        step = rows, gates, layer.weights, EPS, state, layer.plan, SIZES, out
        if isinstance(tiles, Tiles):
            prompts(*step, tiles)
        else:
            decode(*step, tiles)
        return out, matrices, tails

    return Variant(_name(tiles), run)


def _name(tiles: Tiles | StepTiles) -> str:
    """What differs."""
    usual: Tiles | StepTiles = TILES if isinstance(tiles, Tiles) else STEP_TILES
    fields: Sequence[str] = tiles._fields
    values = zip(fields, tiles, usual, strict=True)
    return " ".join(f"{name}={value}" for name, value, was in values if value != was) or "usual"
