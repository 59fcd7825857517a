"""Machine code on a card: loaded once, launched by the driver.

Owns the driver's calls, and the maps by which the card's copy engine finds tiles. Must not know any
kernel.
"""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate, islice
from operator import mul
from typing import Any, Final, NamedTuple

import torch
from cuda.bindings import driver
from torch import Tensor

from kernels.cuda.source import CudaSource

COLUMNS: Final = 64
"""Columns of bfloat16 in one tile of a map: 128 bytes, swizzled for the tensor cores."""

_PROMOTIONS: Final = {
    128: driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    256: driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
}
_KEPT_MAPS: Final = 8192
_KEPT_CONFIGS: Final = 1024


class Function(NamedTuple):
    """A kernel with what is the same at every launch."""

    handle: Any
    num_threads: int
    shared_bytes: int


class DriverError(RuntimeError):
    """The driver refused; the text names the call."""


def version() -> int:
    """The version of CUDA that the driver knows, as 13000 for 13.0."""
    return int(_done(driver.cuDriverGetVersion(), "say its version"))


def card_address(host_address: int) -> int:
    """Where the current card sees page-locked memory of the host; mostly at the same address.
    Raises `DriverError` if it does not see it.
    """
    what = f"show the card the host's memory at {host_address:#x}"
    return int(_done(driver.cuMemHostGetDevicePointer(host_address, 0), what))


def loaded(
    source: CudaSource,
    constants: Mapping[str, int],
    num_threads: int,
    shared_bytes: int,
    device: torch.device,
) -> Function:
    """The kernel of these constants in the context of `device`, loaded the first time. A launch may
    take fewer `shared_bytes`. Raises `CompileError`, `DriverError`, and `ValueError` unless that
    device is the current one.
    """
    return _loaded(source, tuple(constants.items()), num_threads, shared_bytes, device)


@cache
def _loaded(
    source: CudaSource,
    constants: tuple[tuple[str, int], ...],
    num_threads: int,
    shared_bytes: int,
    device: torch.device,
) -> Function:
    if torch.cuda.current_device() != device.index:
        raise ValueError(f"tensors on {device}, not on the current device")
    name = source.name
    module = _done(driver.cuModuleLoadData(source.cubin(dict(constants))), f"load {name}")
    handle = _done(driver.cuModuleGetFunction(module, name.encode()), f"find {name}")
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _done(driver.cuFuncSetAttribute(handle, most, shared_bytes), f"{shared_bytes} shared bytes")
    # A multiprocessor that must divide its memory anew first waits until it is empty.
    share = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    _done(driver.cuFuncSetAttribute(handle, share, 100), "prefer shared memory")
    return Function(handle, num_threads, shared_bytes)


@lru_cache(_KEPT_MAPS)
def tile_map(
    address: int, num_rows: int, depth: int, box_rows: int, cached_bytes: int = 128
) -> Any:  # noqa: ANN401
    """How bfloat16 [num_rows, depth] at `address`, a multiple of 16, is read in tiles of `box_rows`
    rows by `COLUMNS`; zeros behind its end. It does not depend on the content, so it stays valid.
    The L2 cache takes `cached_bytes` at once, 128 or 256.
    """
    return _map(address, (depth, num_rows), (box_rows,), cached_bytes=cached_bytes)


@lru_cache(_KEPT_MAPS)
def heads_map(address: int, shape: tuple[int, int, int], box_heads: int, box_rows: int) -> Any:  # noqa: ANN401
    """How bfloat16 `shape` [rows, heads, D] is read in tiles of `box_rows` rows of `box_heads`
    heads by `COLUMNS`; see `tile_map`.
    """
    return _map(address, shape[::-1], (box_heads, box_rows))


@lru_cache(_KEPT_MAPS)
def blocks_map(address: int, num_rows: int, depth: int, box_rows: int, box_blocks: int) -> Any:  # noqa: ANN401
    """How 16-bit numbers [num_rows, depth], `depth` a multiple of `COLUMNS`, are read in boxes of
    `box_blocks` tiles side by side, one behind the other; see `tile_map`.
    """
    sizes, strides = (COLUMNS, num_rows, depth // COLUMNS), (2, 2 * depth, 2 * COLUMNS)
    return _map(address, sizes, (box_rows, box_blocks), strides)


@lru_cache(_KEPT_MAPS)
def box_map(
    address: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    *,
    line_bytes: int = 0,
    cached_bytes: int = 128,
) -> Any:  # noqa: ANN401
    """The map by which the copy engine reads a tensor of these `sizes` and `strides` (innermost
    first, strides in bytes) in boxes of `COLUMNS` bfloat16 by `box`, swizzled. With `line_bytes`,
    boxes have lines of that many bytes and are not swizzled. Dimensions may overlap. See
    `tile_map`.
    """
    return _map(address, sizes, box, strides, line_bytes=line_bytes, cached_bytes=cached_bytes)


def _map(
    address: int,
    sizes: Sequence[int],
    box: Sequence[int],
    strides: Sequence[int] | None = None,
    *,
    cached_bytes: int = 128,
    line_bytes: int = 0,
) -> Any:  # noqa: ANN401
    """`sizes` from the innermost on, `strides` in bytes, of contiguous memory if not given; `box`
    without the innermost, which is that of bfloat16, or `line_bytes` bytes.
    """
    types, swizzles = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle
    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    strides = strides or list(accumulate(sizes[:-1], mul, initial=2))
    result = driver.cuTensorMapEncodeTiled(
        types.CU_TENSOR_MAP_DATA_TYPE_UINT8
        if line_bytes
        else types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        len(sizes),
        address,
        [wide(size) for size in sizes],
        [wide(stride) for stride in islice(strides, 1, None)],
        [narrow(size) for size in (line_bytes or COLUMNS, *box)],
        [narrow(1)] * len(sizes),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzles.CU_TENSOR_MAP_SWIZZLE_NONE if line_bytes else swizzles.CU_TENSOR_MAP_SWIZZLE_128B,
        _PROMOTIONS[cached_bytes],
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return _done(result, f"map {tuple(sizes)} at {address:#x} in tiles of {tuple(box)}")


def launch(
    function: Function,
    grid: int,
    stream: int,
    maps: Sequence[Any],
    tensors: Sequence[Tensor],
    numbers: Sequence[int],
    *,
    is_early: bool = True,
) -> None:
    """Launch a grid of programs: parameters are the maps, then addresses, then 32-bit integers.

    If `is_early` it may begin before the kernel ahead of it has ended (`griddepcontrol`, since
    Hopper). Raises `DriverError`.
    """
    config = _config(grid, function.num_threads, function.shared_bytes, stream, is_early)
    addresses = [ctypes.c_uint64(tensor.data_ptr()) for tensor in tensors]
    integers = [ctypes.c_int32(number) for number in numbers]
    places = [tile.getPtr() for tile in maps]
    places += [ctypes.addressof(value) for value in (*addresses, *integers)]
    parameters = (ctypes.c_uint64 * len(places))(*places)
    result = driver.cuLaunchKernelEx(config, function.handle, ctypes.addressof(parameters), 0)
    _done(result, f"launch {grid} programs")


@lru_cache(_KEPT_CONFIGS)
def _config(grid: int, num_threads: int, shared_bytes: int, stream: int, is_early: bool) -> Any:  # noqa: ANN401
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = num_threads, 1, 1
    config.sharedMemBytes, config.hStream = shared_bytes, stream
    if not is_early:
        return config
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config.attrs, config.numAttrs = [attribute], 1
    return config


def _done(result: tuple[Any, ...], what: str) -> Any:  # noqa: ANN401
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(f"the driver could not {what}: {error!r}")
    return values[0] if values else None
