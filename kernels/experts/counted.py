"""Products of experts whose programs count the pairs of all experts themselves: what their kernels
in CUDA C++ have in common on the host's side.

Owns what a compilation depends on, and the way from a layer's tensors to a launch. No list is built
ahead. Must not know how a kernel cuts a product up, nor when it serves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from kernels.choose import has_pdl
from kernels.cuda.hopper import ALIGNED
from kernels.cuda.source import CudaSource, bits_of
from kernels.experts.pair_sums import add_pairs
from kernels.experts.tiles import stored

if TYPE_CHECKING:
    from kernels.experts.shapes import Activation, Routed
    from kernels.fp8 import Weight

HELD_TILES: Final = 8
"""Tiles that a program has units of, at most."""

_COUNTED: Final = 256
"""Experts whose pairs are counted, or a multiple of it: the kernel is the same for most models."""

Tiles = TypeVar("Tiles")
"""How a kernel cuts a product up."""


class CountedProduct(NamedTuple):
    """What a compilation depends on, but for tiles and the card; `form` as a stack is stored."""

    is_up: bool
    form: str
    num_experts: int
    depth: int
    out: int
    active: int
    has_bias: bool

    @property
    def expert_rows(self) -> int:
        """Rows of the stack that belong to one expert."""
        return 2 * self.out if self.is_up else self.out

    @property
    def counted(self) -> int:
        """Experts that there may be."""
        return -(-self.num_experts // _COUNTED) * _COUNTED

    def macros(self) -> dict[str, int]:
        """The macros that all such kernels have."""
        return {
            "UP": int(self.is_up), "COUNTED": self.counted, "DEPTH": self.depth, "OUT": self.out,
            "ACTIVE": self.active, "BIAS": int(self.has_bias),
        }  # fmt: skip


class CountingProgram(NamedTuple):
    """A kernel for a product: its macros, its threads, and bytes of shared memory: the most that a
    launch of it may take, and those that this one takes.
    """

    constants: Mapping[str, int]
    num_threads: int
    most_bytes: int
    used_bytes: int


class CountingKernel(ABC, Generic[Tiles]):
    """The two products of a mixture by one kernel, `source`."""

    source: CudaSource

    @abstractmethod
    def tiles(self, product: CountedProduct) -> Tiles:
        """How a product is cut up if nobody says."""

    @abstractmethod
    def program(
        self, product: CountedProduct, tiles: Tiles, device: torch.device
    ) -> CountingProgram:
        """The kernel for a product. Raises `ValueError` for sizes that it does not take."""

    @abstractmethod
    def num_programs(
        self, product: CountedProduct, tiles: Tiles, num_pairs: int, device: torch.device
    ) -> int:
        """The number of programs of a launch. Raises `ValueError` for more pairs than they hold."""

    @abstractmethod
    def weights(
        self, product: CountedProduct, stack: Weight
    ) -> tuple[Sequence[Any], Sequence[Tensor]]:
        """What the kernel reads of a stack, as maps and as tensors."""

    @abstractmethod
    def room(self, residual: Tensor, num_pairs: int) -> Tensor:
        """Memory for the products of `num_pairs` pairs, which a launch behind them sums."""

    def gate_up(
        self,
        x: Tensor,
        stack: Weight,
        bias: Tensor | None,
        routed: Routed,
        width: int,
        activation: Activation,
        tiles: Tiles | None = None,
    ) -> Tensor:
        """Gates times ups of each pair, bfloat16 [T K, width], of x bfloat16 [T, hidden]. Raises
        `CompileError`, `DriverError` and `ValueError`.
        """
        num_pairs, active = routed.experts.numel(), routed.experts.shape[1]
        form, count = stored(stack).form, stack.shape[0] // (2 * width)
        product = CountedProduct(True, form, count, x.shape[1], width, active, bias is not None)
        out = x.new_empty(num_pairs, width)
        self._launch(product, x, stack, bias, routed, out, activation, tiles)
        return out

    def down(
        self,
        gated: Tensor,
        stack: Weight,
        bias: Tensor | None,
        routed: Routed,
        residual: Tensor,
        tiles: Tiles | None = None,
    ) -> Tensor:
        """`residual` plus the weighed sums of pairs, bfloat16 [T, hidden]; see `gate_up`.

        It may read the experts before the kernel ahead has ended: that must be `gate_up`, or one
        that begins when all ahead of it has ended. Launches on one device must be ordered.
        """
        hidden, active = residual.shape[1], routed.experts.shape[1]
        form, count = stored(stack).form, stack.shape[0] // hidden
        sizes = gated.shape[1], hidden, active, bias is not None
        product = CountedProduct(False, form, count, *sizes)
        out, products = torch.empty_like(residual), self.room(residual, gated.shape[0])
        self._launch(product, gated, stack, bias, routed, products, None, tiles)
        add_pairs(products, routed.weights, residual, out)
        return out

    def _launch(
        self,
        product: CountedProduct,
        x: Tensor,
        stack: Weight,
        bias: Tensor | None,
        routed: Routed,
        out: Tensor,
        activation: Activation | None,
        tiles: Tiles | None,
    ) -> None:
        tiles, num_pairs = tiles or self.tiles(product), routed.experts.numel()
        program = self.program(product, tiles, x.device)
        if x.is_meta:
            self.source.record(program.constants)
            return
        if not num_pairs:
            return
        from kernels.cuda.driver import launch, loaded

        if x.data_ptr() % ALIGNED:
            x = x.clone()
        maps, weights = self.weights(product, stack)
        compiled = self.source, program.constants, program.num_threads, program.most_bytes
        launch(
            loaded(*compiled, x.device)._replace(shared_bytes=program.used_bytes),
            self.num_programs(product, tiles, num_pairs, x.device),
            torch.cuda.current_stream(x.device).cuda_stream,
            maps,
            (x, routed.experts, *weights, x if bias is None else bias, out),
            (num_pairs, *[bits_of(number) for number in activation or (0.0,) * 4]),
            is_early=has_pdl(x.device),
        )
