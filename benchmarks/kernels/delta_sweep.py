"""Finds the best tiles of `kernels.delta_rule` at the 27B's sizes: one at a time differs.

`python -m benchmarks.kernels delta_sweep --jobs 16 --parts`: the best of each case by kernel, too;
`--json FILE` has the times of all, `--case decode` the decodes only, `--case verify` the rows that
may be taken back. "usual" are the tiles of prompts; "fused" one kernel's warps, registers, columns,
values and `lanes_first`; "streamed" another's warps, registers, values and stages. The
tiles of a verification differ from `RowTiles()`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from benchmarks.kernels.case import KernelCase, Variant
from benchmarks.kernels.delta_rule import EPS, SIZES, drawn_layer, mixed, verified
from benchmarks.kernels.linear import case as linear_case
from kernels.delta_rule import DeltaState, GateProduct
from kernels.delta_rule.device import FEW_TILES, MANY_TILES, SOME_TILES, decode
from kernels.delta_rule.fused import FusedTiles
from kernels.delta_rule.prompts import TILES, PromptTiles, prompts
from kernels.delta_rule.row_steps import FEW_ROW_TILES, MANY_ROW_TILES, RowTiles
from kernels.delta_rule.streamed import StreamTiles
from kernels.delta_rule.verified import verify
from kernels.linear import norm_linear
from kernels.linear.choose import Op
from kernels.linear.config import Skinny

_PROMPTS = (8192, 2048, 300, 32)
_DECODES = (256, 64, 32, 16, 8, 1)
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
_DECODE_TILES = (
    MANY_TILES,
    *[MANY_TILES._replace(stages=stages) for stages in (2, 3)],
    MANY_TILES._replace(registers=128),
    SOME_TILES,
    SOME_TILES._replace(lanes_first=not SOME_TILES.lanes_first),
    SOME_TILES._replace(columns=8),
    FusedTiles(1, 255, 32, 32),
    FusedTiles(4, 128, 16, 128),
    FusedTiles(8, 128, 16, 128),
    FusedTiles(2, 128, 16, 32),
    FusedTiles(4, 128, 16, 64),
    FusedTiles(4, 120, 32, 32),
    FusedTiles(8, 128, 128),
    FusedTiles(8, 255, 16),
)
_VERIFIED = ((3, 64), (1, 64), (3, 8), (1, 1), (3, 1), (4, 1), (8, 1), (16, 1))
"""Rows of a sequence, sequences."""

_ROW_TILES = (
    *[RowTiles(group=group) for group in (4, 16)],
    *[RowTiles(stages=stages, num_warps=2) for stages in (2, 3, 4)],
    FEW_ROW_TILES,
    MANY_ROW_TILES,
    RowTiles(4, 255),
    RowTiles(4, 255, streams=True),
    RowTiles(4, 255, group=16),
    *[RowTiles(num_warps=8, streams=streams) for streams in (False, True)],
    RowTiles(4, 255, num_warps=4),
    RowTiles(16, 80),
    *[RowTiles(16, registers, group=16) for registers in (80, 128)],
)
_PRODUCTS = (
    MANY_TILES,
    FEW_TILES,
    FEW_TILES._replace(lanes_first=not FEW_TILES.lanes_first),
    FusedTiles(8, 128, 16),
)
_WIDTH = 5120
"""The width of the 27B's rows."""

_CHOSEN = Skinny(64, 128, 10, 4, 4, block_rows=16)
_GATES = (
    _CHOSEN,
    Skinny(64, 64, 8, 4, 4),
    Skinny(64, 128, 10, 4, 4),
    _CHOSEN._replace(splits=20),
    _CHOSEN._replace(splits=5),
    _CHOSEN._replace(block_n=32),
    _CHOSEN._replace(block_rows=32),
)
"""How their gates' product may be cut: as it is, as it was, and others."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """Prompts of one sequence, and decodes; none off CUDA."""
    if device.type != "cuda":
        return
    for length in _PROMPTS:
        case = mixed(f"prompt {length}", [length], SIZES, device)
        yield replace(case, variants=[_variant([length], tiles, device) for tiles in _TILES])
    for num in _DECODES:
        case = mixed(f"decode {num}", [1] * num, SIZES, device)
        yield replace(
            case, variants=[_variant([1] * num, tiles, device) for tiles in _DECODE_TILES]
        )
    calls = {_name(tiles): _verify(tiles) for tiles in _ROW_TILES}
    for num_rows, num in _VERIFIED:
        yield verified(num_rows, num, SIZES, device, calls)
    for num in (1, 2):
        yield _with_product(num, device)
    for num in (32, 64, 192):
        given = Op.NORM_LINEAR, num, 2 * SIZES.num_value_heads, _WIDTH
        yield linear_case(*given, _GATES, device)


def _verify(tiles: RowTiles) -> Callable[..., Tensor]:
    return partial(verify, sizes=SIZES, tiles=tiles)


def _with_product(num: int, device: torch.device) -> KernelCase:
    """Decodes with the product of their gates, in its own kernel and in that of the rule."""
    case = mixed(f"decode {num} with gates", [1] * num, SIZES, device)
    norm = torch.ones(_WIDTH, device=device)

    def make() -> tuple[Tensor, ...]:
        rows, _, *state = case.make()
        drawn = [
            torch.randn(count, _WIDTH, device=device).to(torch.bfloat16)
            for count in (num, 2 * SIZES.num_value_heads)
        ]
        return rows, drawn[0], drawn[1].mul_(_WIDTH**-0.5), *state

    def expected(
        rows: Tensor, hidden: Tensor, weight: Tensor, *state: Tensor
    ) -> tuple[Tensor, ...]:
        normed = torch.nn.functional.rms_norm(hidden.float(), (_WIDTH,), eps=EPS)
        found: tuple[Tensor, ...] = case.expected(rows, normed @ weight.float().T, *state)
        return found

    def variant(tiles: FusedTiles | StreamTiles) -> Variant:
        decoded = _variant([1] * num, tiles, device)

        def run(rows: Tensor, hidden: Tensor, weight: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            product = GateProduct(hidden, norm, EPS, weight)
            if isinstance(tiles, FusedTiles):
                return decoded.run(rows, product, *state)
            return decoded.run(rows, norm_linear(hidden, norm, EPS, weight), *state)

        return Variant(decoded.name, run)

    return replace(
        case, make=make, expected=expected, variants=[variant(tiles) for tiles in _PRODUCTS]
    )


def _variant(
    lengths: Sequence[int],
    tiles: PromptTiles | FusedTiles | StreamTiles,
    device: torch.device,
) -> Variant:
    """Prompts or decodes of these lengths, as the tiles say."""
    given = cache(lambda: drawn_layer(lengths, SIZES, device))

    def run(
        rows: Tensor, gates: Tensor | GateProduct, matrices: Tensor, tails: Tensor
    ) -> tuple[Tensor, ...]:
        out = rows.new_empty(len(rows), SIZES.value_columns)
        state, layer = DeltaState(matrices, tails), given()
        behind = layer.weights, EPS, state, layer.plan, SIZES, out
        if isinstance(tiles, PromptTiles):
            assert isinstance(gates, Tensor)
            prompts(rows, gates, *behind, tiles)
        else:
            decode(rows, gates, *behind, tiles)
        return out, matrices, tails

    return Variant(_name(tiles), run)


def _name(tiles: PromptTiles | FusedTiles | StreamTiles | RowTiles) -> str:
    """The name of a variant: the fields by which its tiles differ."""
    if isinstance(tiles, FusedTiles):
        return f"fused {' '.join(str(int(value)) for value in tiles)}"
    if isinstance(tiles, StreamTiles):
        return f"streamed {' '.join(str(value) for value in tiles)}"
    usual = next(each for each in (TILES, RowTiles()) if type(each) is type(tiles))
    fields: Sequence[str] = tiles._fields
    values = zip(fields, tiles, usual, strict=True)
    return " ".join(f"{name}={value}" for name, value, was in values if value != was) or "usual"
