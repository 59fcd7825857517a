"""The matrices of a checkpoint, read in every format in which one may hold them.

Owns which tensors make a matrix: values and scales, in blocks, rows or groups, one matrix of many
modules, a stack of experts. Must not know layers, nor files (`checkpoint.py`).
"""

from functools import partial
from typing import Final

import torch
from torch import Tensor

from housekeeping.sizes import bytes_text
from kernels.fp8 import BLOCK, FP8, Fp8Weight
from kernels.int4 import Int4Weight
from kernels.linear import Weight
from kernels.mxfp4 import GROUP, Mxfp4Weight
from protocol.errors import ConfigError
from workers.engine.load.checkpoint import Checkpoint
from workers.engine.load.int4_formats import (
    Format,
    Module,
    Read,
    joined,
    read_awq,
    read_gptq,
    read_packed,
    widened,
)
from workers.engine.load.quantize import StoredFormat
from workers.engine.load.report import Report
from workers.engine.models.description import (
    ModelDescription,
)
from workers.engine.models.row_orders import (
    gates_first,
    scales_shape,
    wide_form,
)

_INT4: Final[dict[StoredFormat, tuple[str, Format]]] = {
    StoredFormat.INT4_AWQ: (".qweight", read_awq),
    StoredFormat.INT4_GPTQ: (".qweight", read_gptq),
    StoredFormat.INT4_GPTQ_V2: (".qweight", partial(read_gptq, is_v2=True)),
    StoredFormat.INT4_PACKED: (".weight_packed", read_packed),
}
"""For each 4-bit format the suffix of a quantised tensor's name, and the function that reads it."""

_BLOCKS: Final = "_blocks"
_SCALES: Final = "_scales"
"""What follows the name of a tensor of all experts in MXFP4."""


class MatrixReader:
    """Reads tensors in order and remembers which it took."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelDescription,
        device: torch.device,
        dtype: torch.dtype,
        report: Report,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._device = device
        self._dtype = dtype
        self._report = report
        self._taken: set[str] = set()
        self._scale_suffix = config.stored.scale_suffix_of(checkpoint.names)
        self._reported_percent = -1
        self._num_widened = 0

    def settle(self) -> None:
        """Wait for all that was read."""
        self._checkpoint.settle(self.report_progress)

    def product(self, depth: int, *modules: tuple[str, int]) -> Weight:
        """The weight of a product, [rows of all modules, depth], as the checkpoint holds it."""
        weights = [(f"{name}.weight", (num_rows, depth)) for name, num_rows in modules]
        stored, names = self._config.stored, self._checkpoint.names
        if stored in _INT4:
            return self._int4_product(depth, modules, *_INT4[stored])
        scaled = [name for name, _ in modules if name + self._scale_suffix in names]
        if stored is StoredFormat.DENSE or not scaled:
            return self.merged(*weights)
        for name, num_rows in modules:
            self._check_fp8(name, num_rows, is_last=name == modules[-1][0])
        values = self.merged(*weights, dtype=FP8)
        suffixed = [name + self._scale_suffix for name, _ in modules]
        if stored is StoredFormat.FP8_TENSORS:
            counts = [num_rows for _, num_rows in modules]
            return Fp8Weight(values, self._spread(*zip(suffixed, counts, strict=True)))
        shapes = [scales_shape(stored, num_rows, depth) for _, num_rows in modules]
        scales = self.merged(*zip(suffixed, shapes, strict=True), dtype=torch.float32)
        return Fp8Weight(values, scales.view(-1) if stored is StoredFormat.FP8_ROWS else scales)

    def wide(self, depth: int, *modules: tuple[str, int]) -> Tensor:
        """The rows of all modules, [rows, depth], in 16 bits whatever the checkpoint holds."""
        stored = self._config.stored
        suffix = _INT4[stored][0] if stored in _INT4 else self._scale_suffix
        if not any(name + suffix in self._checkpoint.names for name, _ in modules):
            return self.merged(*((f"{name}.weight", (rows, depth)) for name, rows in modules))
        parts = [self.product(depth, module) for module in modules]
        self.settle()
        return torch.cat([wide_form(part, self._dtype) for part in parts])

    def fused(self, name: str, count: int, num_rows: int, depth: int) -> Weight:
        """The stack of the one tensor `name` [count, num_rows, depth]."""
        stack, stored = count * num_rows, self._config.stored
        shape, names = (count, num_rows, depth), self._config.names
        if name + _BLOCKS in self._checkpoint.names:
            return self._mxfp4(name, *shape)
        if names.alternate:
            turned = self._checkpoint.read(name, (count, depth, num_rows)).mT
            self._taken.add(name)
            if name.endswith(names.fused_gate_up):
                turned = turned[:, gates_first(num_rows)]
            return turned.reshape(stack, depth).to(self._device, self._dtype, copy=True)
        if not self._has_scales(name):
            return self.merged((name, shape)).view(stack, depth)
        values = self.merged((name, shape), dtype=FP8).view(stack, depth)
        scaled = name + self._fused_scale_suffix
        if stored is StoredFormat.FP8_TENSORS:
            return Fp8Weight(values, self._spread((scaled, num_rows), count=count))
        part = scaled, (count, *scales_shape(stored, num_rows, depth))
        scales = self.merged(part, dtype=torch.float32).flatten(0, 1)
        return Fp8Weight(values, scales.view(-1) if stored is StoredFormat.FP8_ROWS else scales)

    def is_fused(self, name: str) -> bool:
        """Whether all experts are in the one tensor `name`, or in its blocks and scales."""
        return not {name, name + _BLOCKS}.isdisjoint(self._checkpoint.names)

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of that name and shape, in this reader's dtype unless another is given."""
        wanted = dtype or self._dtype
        tensor = self._checkpoint.read(name, shape, is_float=wanted.is_floating_point)
        self._taken.add(name)
        # copy=True: what safetensors gives may be a view of the mapped file.
        return tensor.to(self._device, wanted, copy=True)

    def merged(
        self, *parts: tuple[str, tuple[int, ...]], dtype: torch.dtype | None = None
    ) -> Tensor:
        """The parts one after another, each read into its final place."""
        num_rows = sum(shape[0] for _, shape in parts)
        shape = (num_rows, *parts[0][1][1:])
        merged = torch.empty(shape, dtype=dtype or self._dtype, device=self._device)
        row = 0
        for name, shape in parts:
            if merged.dtype is not FP8:
                self._check_unscaled(name)
            self._checkpoint.read_into(name, merged[row : row + shape[0]])
            self._taken.add(name)
            row += shape[0]
        return merged

    def _int4_product(
        self, depth: int, modules: tuple[tuple[str, int], ...], suffix: str, read: Format
    ) -> Weight:
        """Like `product`, for a checkpoint in 4 bits. Modules that the checkpoint leaves in 16 bits
        stay in 16 bits. If the modules that are merged into one matrix differ in format, the whole
        matrix is widened to 16 bits.
        """
        quantised = {name for name, _ in modules if name + suffix in self._checkpoint.names}
        if not quantised:
            return self.merged(*((f"{name}.weight", (rows, depth)) for name, rows in modules))
        parts: list[Read] = []
        for name, num_rows in modules:
            if name not in quantised:
                parts.append(self.tensor(f"{name}.weight", num_rows, depth))
                continue
            self._check_promised(name)
            module = Module(self._checkpoint, name, num_rows, depth)
            parts.append(read(module))
            self._taken |= module.taken
        small = [part for part in parts if isinstance(part, Int4Weight)]
        alike = joined(small) if len(small) == len(parts) else None
        if alike is not None:
            return alike.to(self._device)
        self._num_widened += 1
        return torch.cat([widened(part, self._device, self._dtype) for part in parts])

    def _check_fp8(self, name: str, num_rows: int, *, is_last: bool) -> None:
        """Check a module that has scales, or whose neighbours in a merged matrix have some."""
        weight = f"{name}.weight"
        if weight in self._checkpoint.names and not self._checkpoint.is_fp8(weight):
            raise ConfigError(
                f"{weight} is not in 8 bits, but its scales or its neighbours are: take another "
                "quantised model, or the bf16 one with quantization = 'fp8'"
            )
        if self._config.stored.is_by_block and num_rows % BLOCK and not is_last:
            raise ConfigError(
                f"{weight} has {num_rows} rows, which blocks of {BLOCK} do not divide: take the "
                "bf16 model with quantization = 'fp8'"
            )

    def _check_unscaled(self, name: str) -> None:
        """Check a tensor that is read as it is in a checkpoint of 8 bits: e4m3 whose scales were
        lost would be other numbers.
        """
        checkpoint = self._checkpoint
        if not self._config.stored.is_fp8 or name not in checkpoint.names:
            return
        if checkpoint.is_fp8(name):
            scales = f"{name.removesuffix('.weight')}{self._scale_suffix}"
            raise ConfigError(
                f"{checkpoint.model_dir} has {name} in 8 bits, but no {scales}: fetch the model "
                "again, or take another quantised one"
            )

    def _check_promised(self, name: str) -> None:
        """Check a module in 4 bits for what its quantization_config says that it has."""
        for suffix in self._config.promised:
            if name + suffix not in self._checkpoint.names:
                raise ConfigError(
                    f"{self._checkpoint.model_dir} has no {name}{suffix}, which its "
                    "quantization_config (desc_act, actorder or symmetric) promises: take a "
                    "checkpoint whose parts belong together"
                )

    def _mxfp4(self, name: str, count: int, num_rows: int, depth: int) -> Mxfp4Weight:
        """The stack of blocks and scales [count, num_rows, ...] of groups of columns."""
        groups, names = depth // GROUP, self._config.names
        pairs = self._checkpoint.read(name + _BLOCKS, (count, num_rows, groups, GROUP // 2))
        powers = self._checkpoint.read(name + _SCALES, (count, num_rows, groups))
        self._taken |= {name + _BLOCKS, name + _SCALES}
        if names.alternate and name.endswith(names.fused_gate_up):
            order = gates_first(num_rows)
            pairs, powers = pairs[:, order], powers[:, order]
        stack = count * num_rows
        pairs, powers = (
            part.reshape(stack, -1).to(self._device, copy=True) for part in (pairs, powers)
        )
        return Mxfp4Weight(pairs, powers)

    @property
    def _fused_scale_suffix(self) -> str:
        """What follows the name of a tensor of all experts to name its scales."""
        return self._scale_suffix.replace(".weight", "")

    def _has_scales(self, name: str) -> bool:
        """Whether the fused tensor `name` is in 8 bits."""
        is_named = name + self._fused_scale_suffix in self._checkpoint.names
        return self._config.stored.is_fp8 and is_named

    def _spread(self, *matrices: tuple[str, int], count: int = 1) -> Tensor:
        """A scale for each row of matrices that have one each, `count` of them in one tensor; by
        the names of their scales and their numbers of rows. Raises `ConfigError`.
        """
        parts = []
        for name, num_rows in matrices:
            shape = self._checkpoint.shape_of(name)
            scales = self._checkpoint.read(name, shape).float()
            self._taken.add(name)
            if scales.numel() != count:
                raise ConfigError(
                    f"{name} has shape {list(shape)}, but its config.json has one scale for each "
                    "matrix: take the quantization_config of its makers"
                )
            parts.append(scales.view(-1, 1).expand(count, num_rows).flatten())
        return torch.cat(parts).to(self._device)

    def report_progress(self) -> None:
        """Report the bytes read, at most a hundred times."""
        done, total = self._checkpoint.done_bytes, self._checkpoint.num_bytes
        if (percent := 100 * done // total) > self._reported_percent:
            self._reported_percent = percent
            self._report("load", done / total, f"{bytes_text(done)} of {bytes_text(total)}")

    def report_widened(self) -> None:
        """Say what takes more memory than the checkpoint's format promises."""
        if self._num_widened:
            text = "matrices are in 16 bits, because the checkpoint holds their parts differently"
            self._report("load", 1.0, f"{self._num_widened} {text}")
