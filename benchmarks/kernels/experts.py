"""Times the kernels of a mixture's layer, for few rows and for many, with tiles of several sizes.

`python -m benchmarks.kernels experts --jobs 16 --json FILE` on a card; `--case "30b fp8"` takes
some only. Each variant is compared with the plain torch definition first; the first of a case is
what serves now. Experts are drawn, independent and uniform; the floor counts those that such
choices have, and the times of gates and ups for many rows hold the list of pairs too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.engine.floor import distinct_experts
from benchmarks.kernels.case import KernelCase, Variant, within
from kernels.experts import Activation, ExpertWeights, Routed, Routing, mix, norm_route, route
from kernels.experts import reference as defined
from kernels.experts.counted import CountedProduct
from kernels.experts.stack import Stack
from kernels.fp8 import quantize_weight
from kernels.mxfp4 import GROUP, Mxfp4Weight, place
from kernels.rms_norm import rms_norm

ROWS: Final = (1, 8, 64)
_FEWEST_LISTED: Final = 8
_MOST_FEW: Final = 8
_BYTES: Final = {"bf16": 2.0, "fp8": 1.0, "mxfp4": 0.53125}
_TOLERANCE: Final = 3e-2
_EPS: Final = 1e-6


class Mixture(NamedTuple):
    """The sizes of a layer."""

    name: str
    form: str
    hidden: int
    width: int
    routing: Routing
    activation: Activation = Activation()


MIXTURES: Final = (
    Mixture("30b", "bf16", 2048, 768, Routing(128, 8)),
    Mixture("30b", "fp8", 2048, 768, Routing(128, 8)),
    Mixture("gpt-oss", "mxfp4", 2880, 2880, Routing(32, 4), Activation(1.702, 1.0, 7.0)),
    Mixture("35b", "bf16", 2048, 512, Routing(256, 8)),
)


def cases(device: torch.device) -> Iterator[KernelCase]:
    """Router, gates and ups, what is down, and the whole layer; none without CUDA."""
    if device.type != "cuda":
        return
    for mixture in MIXTURES:
        for rows in ROWS:
            yield from (one(mixture, rows, device) for one in (_router, _up, _down, _layer))


@lru_cache(maxsize=1)
def _stacks(mixture: Mixture, device: torch.device) -> tuple[Stack, Stack, Tensor]:
    """Both stacks and the router. They are cached for the last mixture."""
    count, hidden, width = mixture.routing.num_experts, mixture.hidden, mixture.width
    generator = torch.Generator(device).manual_seed(0)
    drawn = partial(_drawn, mixture.form, generator, device)
    router = torch.randn(count, hidden, generator=generator, device=device)
    return (
        drawn(count * 2 * width, hidden),
        drawn(count * hidden, width),
        (router * hidden**-0.5).bfloat16(),
    )


@lru_cache(maxsize=1)
def _placed_stacks(mixture: Mixture, device: torch.device) -> tuple[Stack, Stack]:
    """Both stacks as kernels in CUDA C++ read them; those of the last mixture are kept."""
    gate_up, down, _ = _stacks(mixture, device)
    return _placed(gate_up), _placed(down)


def _placed(stack: Stack) -> Stack:
    if not isinstance(stack, Mxfp4Weight):
        return stack
    return place(replace(stack, pairs=stack.pairs.clone()))


def _drawn(
    form: str, generator: torch.Generator, device: torch.device, num_rows: int, depth: int
) -> Stack:
    if form == "mxfp4":
        pairs = torch.empty(num_rows, depth // 2, dtype=torch.uint8, device=device)
        powers = torch.empty(num_rows, depth // GROUP, dtype=torch.uint8, device=device)
        pairs.random_(0, 256, generator=generator)
        powers.random_(117, 122, generator=generator)
        return Mxfp4Weight(pairs, powers)
    whole = torch.empty(num_rows, depth, dtype=torch.bfloat16, device=device)
    whole.normal_(0.0, depth**-0.5, generator=generator)
    return quantize_weight(whole) if form == "fp8" else whole


def _inputs(mixture: Mixture, rows: int, device: torch.device) -> tuple[Any, ...]:
    """Normed rows, their experts and weights, and what is added to."""
    count, active = mixture.routing[:2]
    _stacks(mixture, device)
    x, residual = (
        torch.randn(rows, mixture.hidden, device=device, dtype=torch.bfloat16) for _ in range(2)
    )
    experts = torch.rand(rows, count, device=device).topk(active, dim=1).indices.int()
    weights = torch.rand(rows, active, device=device)
    return x, experts, weights / weights.sum(1, keepdim=True), residual


def _read_bytes(mixture: Mixture, rows: int, num_matrices: int) -> int:
    """Bytes of the experts that rows choose, of gate, up and down each one matrix."""
    chosen = distinct_experts(*mixture.routing[:2], rows)
    return int(chosen * num_matrices * mixture.width * mixture.hidden * _BYTES[mixture.form])


def _case(
    kind: str,
    mixture: Mixture,
    rows: int,
    make: Callable[[], tuple[Any, ...]],
    variants: Sequence[Variant],
    expected: Callable[..., Any],
    moved_bytes: int,
) -> KernelCase:
    name = f"{mixture.name} {mixture.form} {kind}, {rows} rows"
    return KernelCase(name, make, variants, expected, moved_bytes, 0, within(_TOLERANCE))


def _router(mixture: Mixture, rows: int, device: torch.device) -> KernelCase:
    def run(x: Tensor, *_: Tensor) -> Tensor:
        router = _stacks(mixture, device)[2]
        return route(x, ExpertWeights(router), mixture.routing).weights

    def expected(x: Tensor, *_: Tensor) -> Tensor:
        router = ExpertWeights(_stacks(mixture, device)[2].float())
        return defined.route(x.float(), router, mixture.routing).weights

    moved = 2 * mixture.routing.num_experts * mixture.hidden
    make = partial(_inputs, mixture, rows, device)
    return _case("router", mixture, rows, make, [Variant("as it is", run)], expected, moved)


def _layer(mixture: Mixture, rows: int, device: torch.device) -> KernelCase:
    from kernels.experts import router as router_kernel  # noqa: PLC0415 -- Triton

    norm = torch.ones(mixture.hidden, device=device, dtype=torch.bfloat16)
    routing, activation = mixture.routing, mixture.activation

    def in_cuda(*given: Tensor) -> Tensor:
        from kernels.experts import verdict  # noqa: PLC0415 -- Triton, which a CPU may lack

        # The other way, beside what serves.
        with patch.object(verdict, "serves", lambda *_: True):
            return whole(*given, stacks=_placed_stacks)

    def whole(
        x: Tensor,
        experts: Tensor,
        weights: Tensor,
        residual: Tensor,
        *,
        is_apart: bool = False,
        stacks: Callable[[Mixture, torch.device], tuple[Stack, ...]] = _stacks,
        joined: Callable[..., tuple[Tensor, Routed]] = norm_route,
    ) -> Tensor:
        gate_up, down, *_ = stacks(mixture, device)
        given = ExpertWeights(_stacks(mixture, device)[2])
        # The router's time, and the experts of the case.
        if is_apart:
            normed = rms_norm(x, norm, _EPS)
            route(normed, given, routing)
        else:
            normed, _ = joined(x, norm, _EPS, given, routing)
        routed = Routed(experts, weights)
        return mix(normed, gate_up, down, given, routed, routing, activation, residual)

    def expected(x: Tensor, experts: Tensor, weights: Tensor, residual: Tensor) -> Tensor:
        gate_up, down, _ = _stacks(mixture, device)
        routed, normed = Routed(experts, weights), rms_norm(x, norm, _EPS)
        gated = defined.gate_up(normed, gate_up, None, routed, routing, activation)
        return defined.down(gated, down, None, routed, routing, residual)

    moved = _read_bytes(mixture, rows, 3) + 2 * routing.num_experts * mixture.hidden
    make = partial(_inputs, mixture, rows, device)
    variants = [Variant("as it is", whole), Variant("norm apart", partial(whole, is_apart=True))]
    if rows <= router_kernel.NORMED_ROWS:
        together = partial(whole, joined=router_kernel.norm_route)
        variants.append(Variant("norm together", together))
    if mixture.form in {"mxfp4", "fp8"}:
        variants.append(Variant("in CUDA C++", in_cuda))
    return _case("layer", mixture, rows, make, variants, expected, moved)


def _up(mixture: Mixture, rows: int, device: torch.device) -> KernelCase:
    from kernels.experts import few, many  # noqa: PLC0415 -- Triton, which a CPU may lack
    from kernels.experts.tiles import ExpertTiles  # noqa: PLC0415

    routing, width, activation = mixture.routing, mixture.width, mixture.activation

    def by_few(
        tiles: ExpertTiles | None,
        x: Tensor,
        experts: Tensor,
        weights: Tensor,
        *_: Any,  # noqa: ANN401
    ) -> Tensor:
        stack, routed = _stacks(mixture, device)[0], Routed(experts, weights)
        return few.gate_up(x, stack, None, routed, width, activation, tiles)

    def by_many(tiles: ExpertTiles | None, x: Tensor, experts: Tensor, *_: Any) -> Tensor:  # noqa: ANN401
        stack, listed = _stacks(mixture, device)[0], many.pair_list(experts, routing.num_experts)
        return many.gate_up(x, stack, None, listed, experts.numel(), width, activation, tiles)

    def expected(x: Tensor, experts: Tensor, weights: Tensor, *_: Any) -> Tensor:  # noqa: ANN401
        stack, routed = _stacks(mixture, device)[0], Routed(experts, weights)
        return defined.gate_up(x, stack, None, routed, routing, activation)

    def in_cuda(
        module: Any,  # noqa: ANN401
        tiles: Any,  # noqa: ANN401
        x: Tensor,
        experts: Tensor,
        weights: Tensor,
        *_: Any,  # noqa: ANN401
    ) -> Tensor:
        stack, routed = _placed_stacks(mixture, device)[0], Routed(experts, weights)
        return module.gate_up(x, stack, None, routed, width, activation, tiles)

    variants = _variants(rows, by_few, _lone_up_tiles(), by_many, _listed_tiles())
    variants += _in_cuda(mixture, rows, in_cuda, is_up=True)
    make = partial(_inputs, mixture, rows, device)
    return _case(
        "gates and ups", mixture, rows, make, variants, expected, _read_bytes(mixture, rows, 2)
    )


def _down(mixture: Mixture, rows: int, device: torch.device) -> KernelCase:
    from kernels.experts import few, many  # noqa: PLC0415 -- Triton, which a CPU may lack
    from kernels.experts.tiles import ExpertTiles  # noqa: PLC0415

    routing = mixture.routing

    def make() -> tuple[Any, ...]:
        _, experts, weights, residual = _inputs(mixture, rows, device)
        shape = experts.numel(), mixture.width
        gated = torch.randn(shape, device=device, dtype=torch.bfloat16)
        pairs = many.pair_list(experts, routing.num_experts)
        torch.cuda.synchronize()  # a kernel may read experts before the one ahead has ended
        return gated, Routed(experts, weights), residual, pairs

    def by_few(
        tiles: ExpertTiles | None,
        gated: Tensor,
        routed: Routed,
        residual: Tensor,
        _: many.PairList,
    ) -> Tensor:
        return few.down(gated, _stacks(mixture, device)[1], None, routed, residual, tiles)

    def by_many(
        tiles: ExpertTiles | None,
        gated: Tensor,
        routed: Routed,
        residual: Tensor,
        pairs: many.PairList,
    ) -> Tensor:
        stack = _stacks(mixture, device)[1]
        return many.down(gated, stack, None, pairs, routed, residual, tiles)

    def in_cuda(
        module: Any,  # noqa: ANN401
        tiles: Any,  # noqa: ANN401
        gated: Tensor,
        routed: Routed,
        residual: Tensor,
        _: many.PairList,
    ) -> Tensor:
        stack = _placed_stacks(mixture, device)[1]
        return module.down(gated, stack, None, routed, residual, tiles)

    def expected(gated: Tensor, routed: Routed, residual: Tensor, _: many.PairList) -> Tensor:
        stack = _stacks(mixture, device)[1]
        return defined.down(gated, stack, None, routed, routing, residual)

    variants = _variants(rows, by_few, _lone_down_tiles(), by_many, _listed_tiles())
    variants += _in_cuda(mixture, rows, in_cuda, is_up=False)
    return _case("down", mixture, rows, make, variants, expected, _read_bytes(mixture, rows, 1))


def _lone_up_tiles() -> tuple[Any, ...]:
    from kernels.experts.tiles import ExpertTiles  # noqa: PLC0415 -- Triton, which a CPU may lack

    return (
        None,
        *(ExpertTiles(outputs, 1024, held=True) for outputs in (2, 4, 8)),
        ExpertTiles(8, 1024, 8, held=True),
        ExpertTiles(4, 512),
        ExpertTiles(8, 256),
        ExpertTiles(8, 512),
        ExpertTiles(16, 256),
        ExpertTiles(16, 512),
        ExpertTiles(8, 1024),
        ExpertTiles(8, 512, 2),
        ExpertTiles(16, 512, 8),
    )


def _lone_down_tiles() -> tuple[Any, ...]:
    from kernels.experts.tiles import ExpertTiles  # noqa: PLC0415 -- Triton, which a CPU may lack

    return (
        None,
        ExpertTiles(2, 1024),
        ExpertTiles(4, 512),
        ExpertTiles(4, 1024),
        ExpertTiles(8, 512),
        ExpertTiles(8, 1024),
        ExpertTiles(16, 512),
        ExpertTiles(4, 512, 2),
        ExpertTiles(16, 1024, 8),
        *(ExpertTiles(4, 1024, ahead=ahead) for ahead in (1, 2, 4)),
        *(ExpertTiles(16, 256, ahead=ahead) for ahead in (1, 4, 8)),
        ExpertTiles(8, 512, ahead=4),
    )


def _listed_tiles() -> tuple[Any, ...]:
    from kernels.experts.tiles import ExpertTiles  # noqa: PLC0415 -- Triton, which a CPU may lack

    return (
        None,
        ExpertTiles(64, 64, 4, 4),
        ExpertTiles(64, 128, 4, 2),
        ExpertTiles(64, 128, 4, 4),
        ExpertTiles(32, 128, 4, 4),
        ExpertTiles(32, 256, 4, 3),
        ExpertTiles(64, 256, 4, 2),
        ExpertTiles(128, 64, 8, 4),
        ExpertTiles(16, 256, 4, 4),
        ExpertTiles(64, 128, 8, 3),
    )


_LONE: Final = (
    None,
    (12, 1, 2, 2),
    (12, 1, 4, 2),
    (12, 1, 6, 1),
    (12, 2, 2, 1),
    (6, 1, 2, 4),
    (6, 1, 3, 3),
    (8, 1, 3, 2),
    (8, 1, 3, 3),
    (12, 2, 1, 2),
)
"""Tiles of `kernels.experts.mxfp4`."""

_LISTED: Final = (
    None,
    *((8, stages, room, 2) for stages in (3, 4, 5) for room in (8, 16)),
    (8, 3, 16, 3),
    (12, 2, 8, 2),
    (12, 3, 8, 2),
    (12, 3, 16, 2),
    *((16, stages, 16, 1, eights) for stages in (4, 5) for eights in (1, 2)),
    (20, 3, 16, 1, 2),
    (24, 2, 16, 1, 2),
)
"""Tiles of `kernels.experts.listed`."""

_ROUNDED: Final = (
    None,
    (2, 9, 32, 32),
    (2, 5, 64, 64),
    (3, 7, 32, 64),
    (2, 8, 64, 96),
    (3, 5, 64, 96),
)
"""Tiles of `kernels.experts.rounded`."""


def _in_cuda(
    mixture: Mixture, rows: int, run: Callable[..., Any], *, is_up: bool
) -> Iterator[Variant]:
    """In CUDA C++, for a mixture in MXFP4 or 8 bits."""
    from kernels.choose import shared_bytes  # noqa: PLC0415 -- Triton, which a CPU may lack
    from kernels.experts import listed, mxfp4, rounded  # noqa: PLC0415

    if mixture.form not in {"mxfp4", "fp8"}:
        return
    room, (count, active) = shared_bytes(torch.device("cuda")), mixture.routing[:2]
    depth, out = mixture.hidden, mixture.width
    if not is_up:
        depth, out = out, depth
    for numbers in _LONE if mixture.form == "mxfp4" and rows <= _MOST_FEW else ():
        lone = None if numbers is None else mxfp4.Mxfp4Tiles(*numbers)
        if lone is None or mxfp4.fits(lone, depth, 1 if is_up else active, room):
            yield Variant(f"cuda, pairs alone: {_numbers(numbers)}", partial(run, mxfp4, lone))
    form = "rows" if mixture.form == "fp8" else mixture.form
    product = CountedProduct(is_up, form, count, depth, out, active, has_bias=False)
    for numbers in _LISTED if rows > 1 else ():
        tiles = None if numbers is None else listed.ListedTiles(*numbers)
        if tiles is None or listed.fits(product, tiles, room):
            yield Variant(f"cuda, tiles: {_numbers(numbers)}", partial(run, listed, tiles))
    for numbers in _ROUNDED if rows > 1 and form == "rows" else ():
        own = None if numbers is None else rounded.RoundedTiles(*numbers)
        if own is None or rounded.fits(product, own):
            yield Variant(f"cuda, rounded: {_numbers(numbers)}", partial(run, rounded, own))


def _numbers(numbers: tuple[int, ...] | None) -> str:
    return "as it is" if numbers is None else " ".join(map(str, numbers))


def _variants(
    rows: int,
    by_few: Callable[..., Any],
    few_tiles: Sequence[Any],
    by_many: Callable[..., Any],
    many_tiles: Sequence[Any],
) -> list[Variant]:
    """The variants for a number of rows: the kernels for few rows, for many rows, or both."""
    found = []
    if rows <= _MOST_FEW:
        found += [Variant(_name("few", tiles), partial(by_few, tiles)) for tiles in few_tiles]
    if rows >= _FEWEST_LISTED:
        found += [Variant(_name("many", tiles), partial(by_many, tiles)) for tiles in many_tiles]
    return found


def _name(kind: str, tiles: Any) -> str:  # noqa: ANN401
    if tiles is None:
        return f"{kind} as it is"
    outputs, columns, warps, stages, *others = tiles
    more = "".join([f", {other}" for other in others])
    return f"{kind} {outputs}x{columns}, {warps} warps, {stages} stages{more}"
