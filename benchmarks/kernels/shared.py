"""Decodes with a shared prefix, beside the same decodes without it and with each attending alone.

Owns the sizes and the swept tiles and pieces, whose costs `kernels.attention.choose` records. The
times are of a layer, without the layout that a step makes once.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from benchmarks.kernels.attention import (
    BLOCK_SIZE,
    DIM,
    EPS,
    HEADS,
    KV,
    MULTIPROCESSORS,
    TOLERANCE,
    cos_sin,
    normal,
    paged,
)
from benchmarks.kernels.case import KernelCase, Variant, within
from kernels.attention import PagedPlan, SharedRun, reference
from kernels.attention import paged as steps
from kernels.attention.choose import decode_config, write_config
from kernels.attention.config import EXTEND_CONFIG, PrefillConfig
from kernels.attention.prefill import prefill
from kernels.attention.shares import decode_shares
from kernels.attention.work import prefill_work, to_device
from kernels.attention.write import qk_norm_rope_write

SIZES: list[tuple[str, int, int, int]] = [
    ("8B", 2, 12_288, 1024),
    ("8B", 4, 12_288, 1024),
    ("8B", 8, 12_288, 1024),
    ("8B", 32, 12_288, 1024),
    ("8B", 64, 12_288, 1024),
    ("8B", 32, 1_024, 512),
    ("8B", 32, 4_096, 512),
    ("8B", 200, 512, 512),
    ("8B", 200, 2_048, 512),
    ("0.6B", 32, 12_288, 1024),
]
"""Model, decodes, shared tokens, own tokens of each."""

TILES: list[tuple[str, PrefillConfig]] = [
    ("CUDA C++", EXTEND_CONFIG),
    ("CUDA C++, 1 wave", EXTEND_CONFIG._replace(waves=1)),
    ("Triton 128 x 64", PrefillConfig(128, 64, 8, 3, target=MULTIPROCESSORS)),
]
SMALL = [("Triton", PrefillConfig(16, 16, 4, 2, target=8, piece=16))]


def cases(device: torch.device) -> Iterator[KernelCase]:
    """Every size with its prefix, then without it; a small one for the interpreter."""
    if device.type == "cpu":
        yield _Size("0.6B", 3, 2 * BLOCK_SIZE, 9, device).case(SMALL)
        return
    for model, rows, shared, own in SIZES:
        yield _Size(model, rows, shared, own, device).case(TILES)
        yield _Size(model, rows, 0, own, device).case([])


class _Size:
    """Decodes with `own` tokens each after `shared` ones."""

    def __init__(self, model: str, rows: int, shared: int, own: int, device: torch.device) -> None:
        self.name = f"{model} {rows} x {own} behind {shared}"
        self.heads, self.rows, self.shared, self.own = HEADS[model], rows, shared, own
        self.device = device
        positions = torch.full((rows,), shared + own - 1, dtype=torch.int32, device=device)
        numbers = torch.arange(rows, dtype=torch.int32, device=device)
        self.plan = PagedPlan(positions, numbers, positions, rows)

    def case(self, tiles: list[tuple[str, PrefillConfig]]) -> KernelCase:
        """The case with each decode alone, then together in these tiles, and the launches ahead
        alone in the first.
        """
        rows, heads, tokens = self.rows, self.heads, self.shared + self.rows * self.own
        return KernelCase(
            name=self.name,
            make=self._make,
            variants=[
                self._variant("apart", None),
                *[self._variant(f"together, {name}", config) for name, config in tiles],
                *[part for name, config in tiles[:1] for part in self._ahead(name, config)],
            ],
            expected=self._expected,
            moved_bytes=2 * DIM * (2 * KV * tokens + 2 * rows * (heads + KV)),
            flops=4 * heads * DIM * rows * (self.shared + self.own),
            accept=within(TOLERANCE),
        )

    def _make(self) -> tuple[Tensor, ...]:
        device, own = self.device, self.own
        keys, values, tables = paged([self.shared, *[own] * self.rows], device)
        begin, own_tables = self.shared // BLOCK_SIZE, tables[1:, : -(-own // BLOCK_SIZE)]
        together = tables[:1, :begin].expand(self.rows, -1)
        tables = torch.cat((together, own_tables), dim=1).contiguous()
        qkv = normal(self.rows, (self.heads + 2 * KV) * DIM, device=device)
        return qkv, normal(self.heads + KV, DIM, device=device), keys, values, tables

    def _laid_out(self, config: PrefillConfig | None) -> PagedPlan:
        """The layout that a step makes once."""
        work, rows = None, self.rows
        if config is not None:
            runs = (SharedRun(0, rows, 0, self.shared, 0),)
            host = prefill_work((), rows, self.heads, KV, config, library=False, runs=runs)
            work = to_device(host, self.device)
        decodes = decode_config(rows, KV, DIM, torch.bfloat16)
        shared = None if work is None else work.shared
        shares = decode_shares(self.plan.positions, rows, KV, decodes, shared)
        return replace(self.plan, work=work, shares=shares)

    def _variant(self, name: str, config: PrefillConfig | None) -> Variant:
        plan = cache(partial(self._laid_out, config))

        def run(qkv: Tensor, norm: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> Tensor:
            planned = replace(plan(), block_tables=tables)
            return steps.attend(qkv, norm, EPS, cos_sin(self.device), keys, values, planned)

        return Variant(name, run)

    def _ahead(self, name: str, config: PrefillConfig) -> list[Variant]:
        plan = cache(partial(self._laid_out, config))

        def queries(
            qkv: Tensor, norm: Tensor, keys: Tensor, values: Tensor, tables: Tensor
        ) -> None:
            caches = cos_sin(self.device), keys, values, replace(plan(), block_tables=tables)
            qk_norm_rope_write(qkv, norm, EPS, *caches, write_config())

        def items(qkv: Tensor, _: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> None:
            planned, work = replace(plan(), block_tables=tables), plan().work
            columns = self.heads * DIM
            turned = qkv[:, :columns].view(self.rows, self.heads, DIM).contiguous()
            if work is not None:
                out = qkv.new_empty(self.rows, columns)
                prefill(turned, keys, values, planned, work, config, out)

        return [
            Variant(f"of {name}: queries", queries, peer=True, checked=False),
            Variant(f"of {name}: items and a copy", items, peer=True, checked=False),
        ]

    def _expected(
        self, qkv: Tensor, norm: Tensor, keys: Tensor, values: Tensor, tables: Tensor
    ) -> Tensor:
        plan = replace(self.plan, block_tables=tables)
        return reference.attend(qkv, norm, EPS, cos_sin(self.device), keys, values, plan)
