"""Products of rows with a 4-bit weight in CUDA C++, from Ampere on: `int4_ampere.cu`.

Owns the kernel's constants, how a product is cut up on a card of so many multiprocessors and so
much shared memory, and the launch. Must not know layers.

Such cards read 2 to 7 bytes per clock and multiprocessor (an H200 21), and their tensor cores need
8 clocks for 16 weight rows by 16 columns by 8 rows of x: 128 bytes of words. So up to 16 rows of x
wait for the memory, of which a third of the multiprocessors can take all; 64 rows take 1.5 to 3
times as long to be multiplied as to be read. Tiles are chosen by what they read on an H200; none of
this was measured on such a card.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor

from kernels.choose import capability, has_pdl, is_card, multiprocessors, shared_bytes
from kernels.cuda import hopper
from kernels.cuda.hopper import ALIGNED
from kernels.cuda.source import ARCH, CudaSource
from kernels.launch import scratch
from kernels.linear.config import Int4Ampere
from kernels.linear.epilogue import NOTHING, Epilogue, EpilogueForm
from kernels.linear.int4_tiles import HALVES, MAX_NORM_ROWS, OTHER_GROUPS, SCALE_BYTES
from kernels.linear.skinny import counters

if TYPE_CHECKING:
    from kernels.int4 import Int4Weight

_CAPABILITY: Final = (8, 0)
_LARGE_BYTES: Final = 160 * 1024
"""Cards with at least this much shared memory for a program have faster memories too, so more is
loaded ahead.
"""
_MANY_WEIGHT_ROWS: Final = 16384
_MAX_SPLITS: Final = 16
_FIXED_STEPS: Final = 4
"""The time of a program's beginning and end, in steps of a team."""
_SPLIT_STEPS: Final = 3
"""The time to exchange sums with other programs, in steps of a team."""


class CardLimits(NamedTuple):
    """What a product is cut up for; `bytes`: shared memory that a program may take."""

    multiprocessors: int
    bytes: int


class _Tiles(NamedTuple):
    """The tiles for a number of rows of x; `wide` is for weights of many rows."""

    small: Int4Ampere
    large: Int4Ampere
    wide: Int4Ampere | None = None


_MANY: Final = Int4Ampere(warps_m=4, m_tiles=1, teams=2, eights=8, stages=2)
_TILES: Final = {
    1: _Tiles(
        small=Int4Ampere(warps_m=1, m_tiles=2, teams=8, eights=1, stages=2),
        large=Int4Ampere(warps_m=1, m_tiles=2, teams=8, eights=1, stages=3),
    ),
    2: _Tiles(
        small=Int4Ampere(warps_m=1, m_tiles=2, teams=4, eights=2, stages=3),
        large=Int4Ampere(warps_m=2, m_tiles=2, teams=4, eights=2, stages=3),
    ),
    4: _Tiles(
        small=Int4Ampere(warps_m=4, m_tiles=1, teams=2, eights=4, stages=3),
        large=Int4Ampere(warps_m=4, m_tiles=1, teams=2, eights=4, stages=4),
    ),
    8: _Tiles(
        small=_MANY,
        large=_MANY,
        wide=Int4Ampere(warps_m=8, m_tiles=1, teams=1, eights=8, stages=3),
    ),
}
"""The tiles by eights of rows. The tiles of 8 and 16 rows for small cards read 14 GB/s for each
multiprocessor of an H200, where 4 teams read 7.6 and tiles of 64 weight rows read 4.1: an RTX 3090
has 11.4 (`python -m benchmarks.kernels int4_ampere_sweep`).
"""

_INVARIANT: Final = Int4Ampere(warps_m=4, m_tiles=1, teams=1, eights=8, stages=3)
"""The tiles with `invariant`. Each sum is added up in the same order, by as many eights of rows as
there are: at least two, as one has sums of its own order.
"""

int4_ampere: Final = CudaSource(
    __name__,
    "int4_ampere",
    Path(__file__).with_name("int4_ampere.cu"),
    lambda _: hopper.header("ampere.h"),
)


@cache
def runs_on(device: torch.device) -> bool:
    """Whether the kernel can be compiled for a device."""
    return is_card(device) and capability(device) >= _CAPABILITY and hopper.has_compiler()


def suits(x: Tensor, weight: Int4Weight) -> bool:
    """Whether this card runs it, for such a product."""
    if x.dtype not in HALVES or weight.scales.dtype not in HALVES or not runs_on(x.device):
        return False
    aligned = x.is_meta or weight.words.data_ptr() % ALIGNED == 0
    return aligned and fits(weight.shape[1], weight.group, shared_bytes(x.device))


@cache
def fits(depth: int, group: int, card_bytes: int) -> bool:
    """Whether a program's scales fit into shared memory, for any number of rows of x."""
    shares = [config._replace(splits=_MAX_SPLITS) for config in configs_on(card_bytes)]
    return all(used_bytes(config, depth, group) <= card_bytes for config in shares)


def configs_on(card_bytes: int) -> tuple[Int4Ampere, ...]:
    """All configurations that `chosen` returns, without splits, on a card with `card_bytes` of
    shared memory.
    """
    is_large = card_bytes >= _LARGE_BYTES
    found = [tiles.large if is_large else tiles.small for tiles in _TILES.values()]
    found += [tiles.wide for tiles in _TILES.values() if tiles.wide is not None]
    return (*found, *(_INVARIANT._replace(eights=eights) for eights in (2, 4, 8)))


def fuses_norm(x: Tensor, norm: Tensor) -> bool:
    """Whether the product normalises x. In float16 an unscaled row may not fit."""
    fits = x.dtype == norm.dtype == torch.bfloat16 and x.shape[0] <= MAX_NORM_ROWS
    return fits and (norm.is_meta or norm.data_ptr() % ALIGNED == 0)


@cache
def card_of(device: torch.device) -> CardLimits:
    """The limits of a card; the pretended one has an H200's multiprocessors, on which no constant
    depends.
    """
    return CardLimits(multiprocessors(device), shared_bytes(device))


@cache
def chosen(
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    card: CardLimits,
    *,
    group: int = 128,
    invariant: bool = False,
) -> Int4Ampere:
    """How a product is cut up; with `invariant` columns as the weight alone has it. All but the
    splits follow from the numbers of rows and the card's shared memory.
    """
    eights = min(8, 1 << max(0, -(-num_rows // 8) - 1).bit_length())
    if invariant:
        config = _INVARIANT
        tiles = -(-num_weight_rows // config.tile)
        splits = _splits(config, tiles, depth, group, card)
        return config._replace(eights=max(2, eights), splits=splits)
    table = _TILES[eights]
    config = table.large if card.bytes >= _LARGE_BYTES else table.small
    if table.wide is not None and num_weight_rows >= _MANY_WEIGHT_ROWS:
        config = table.wide
    tiles = -(-num_weight_rows // config.tile) * -(-num_rows // (8 * config.eights))
    return config._replace(splits=_splits(config, tiles, depth, group, card))


def _splits(config: Int4Ampere, tiles: int, depth: int, group: int, card: CardLimits) -> int:
    """The programs of each tile: the number that ends soonest, of those whose scales fit. Raises
    `ValueError` if none does.
    """
    fitting = [
        splits
        for splits in range(1, _MAX_SPLITS + 1)
        if used_bytes(config._replace(splits=splits), depth, group) <= card.bytes
    ]
    if not fitting:
        raise ValueError(f"{config} for {depth} columns in groups of {group}")
    steps = -(-depth // config.columns)
    if config.eights <= 2:
        # The memory is the limit: programs that run side by side are enough.
        most = min(card.multiprocessors // tiles, steps // (2 * config.teams))
        return max(fitting[0], min(most, _MAX_SPLITS // 2))
    costs = {
        splits: -(-tiles * splits // card.multiprocessors)
        * (-(-steps // (splits * config.teams)) + _FIXED_STEPS)
        + _SPLIT_STEPS * (splits > 1)
        for splits in fitting[:8]
    }
    return min(costs, key=lambda splits: costs[splits])


def used_bytes(config: Int4Ampere, depth: int, group: int, *, x_rows: int = 0) -> int:
    """What a program takes of shared memory: stages of words, x and the norm, and its scales. With
    `x_rows` 0 that of a full tile of rows.
    """
    rows = 8 * config.eights if config.eights > 1 else x_rows or 8
    step = config.columns * (config.tile // 2 + 2 * rows + (2 if config.eights <= 2 else 0))
    all_steps = -(-depth // config.columns)
    steps = -(-all_steps // config.splits)
    groups = steps * (config.columns // group) + OTHER_GROUPS
    return config.teams * config.stages * step + config.tile * groups * SCALE_BYTES


@cache
def constants_of(
    config: Int4Ampere,
    group: int,
    arch: int,
    *,
    is_half: bool = False,
    is_scale_half: bool = False,
    has_zeros: bool = True,
    epilogue: EpilogueForm = NOTHING.form,
) -> Mapping[str, int]:
    """The kernel's macros; the norm is that of up to `MAX_NORM_ROWS`."""
    return {
        "WARPS_M": config.warps_m, "MT": config.m_tiles, "TEAMS": config.teams,
        "NT": config.eights, "STAGES": config.stages, "COLUMNS": config.columns, "GROUP": group,
        "HALF": int(is_half), "SCALE_HALF": int(is_scale_half), "ZEROS": int(has_zeros),
        **epilogue.macros(), ARCH: arch,
    }  # fmt: skip


def product(
    x: Tensor,
    weight: Int4Weight,
    config: Int4Ampere,
    epilogue: Epilogue = NOTHING,
) -> Tensor:
    """The product and its epilogue: x [T, K], its columns as the weight stores them.

    Ask `suits`, and with a norm `fuses_norm`, first. The result is the same every time. Launches on
    one device must be ordered, and the first not inside a capture, as in `skinny`. Raises
    `CompileError` and `DriverError`.
    """
    num_rows, depth = x.shape
    form, swiglu = epilogue.form, epilogue.swiglu
    num_out = form.num_out(weight.shape[0])
    out = x.new_empty(num_rows, num_out)
    major, minor = capability(x.device)
    constants = constants_of(
        config, weight.group, 10 * major + minor, is_half=x.dtype == torch.float16,
        is_scale_half=weight.scales.dtype == torch.float16, has_zeros=weight.zeros is not None,
        epilogue=form,
    )  # fmt: skip
    if x.is_meta:
        int4_ampere.record(constants)
        return out
    from kernels.cuda.driver import launch, loaded

    if x.data_ptr() % ALIGNED:
        x = x.clone()
    tiles = tiles_of(config, num_rows, num_out, swiglu=swiglu)
    left, arrived = x, x
    if config.splits > 1:
        left = scratch(x.device, scratch_numbers(config, tiles))
        arrived = counters(x.device)
    norm, bias, residual = epilogue.norm, epilogue.bias, epilogue.residual
    operands = (weight.words, weight.scales, weight.zeros, x, norm, bias, residual)
    threads, most = 32 * config.warps_m * config.teams, shared_bytes(x.device)
    function = loaded(int4_ampere, constants, threads, most, x.device)
    used = used_bytes(config, depth, weight.group, x_rows=min(8, num_rows))
    launch(
        function._replace(shared_bytes=used),
        tiles * config.splits,
        torch.cuda.current_stream(x.device).cuda_stream,
        (),
        (*[x if part is None else part for part in operands], out, left, arrived),
        (num_rows, num_out, depth, config.splits, epilogue.eps_bits),
        is_early=has_pdl(x.device),
    )
    return out


def tiles_of(config: Int4Ampere, num_rows: int, num_out: int, *, swiglu: bool) -> int:
    """How many tiles, of rows of x by outputs, a product has; each has `splits` programs."""
    features = config.tile // (1 + swiglu)
    return -(-num_out // features) * -(-num_rows // (8 * config.eights))


def scratch_numbers(config: Int4Ampere, tiles: int) -> int:
    """The float32 numbers of scratch memory through which the programs of `tiles` tiles exchange
    partial sums.
    """
    return tiles * config.splits * 8 * config.eights * (config.tile + 1)
