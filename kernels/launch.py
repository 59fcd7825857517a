"""Launching a Triton kernel for a few microseconds of the CPU's time.

Owns the way past Triton's own launch, which binds names, specialises every argument and builds a
key of strings each time: 34 us beside a kernel that runs for 15. A `Launch` is a kernel with all
that is the same from call to call. It keeps compiled kernels by all that makes Triton compile anew:
the device, the tensors' dtypes, and addresses that are not multiples of 16. Numbers that change are
never specialised. Must not know any kernel.

It relies on behaviour that Triton 3.6 and 3.7 share: a launch returns its `CompiledKernel`, whose
`run` takes grid, stream, function, packed metadata, launch metadata, two hooks, and all arguments
by position, addresses as integers. The interpreter returns nothing, so there Triton itself launches
every time; the same holds where launches are only recorded.

Also owns the scratch memory of launches, by one rule: one stream per device. All launches of a
device share this memory, because each writes to it only when the kernels ahead of it have ended. So
no launch allocates (a microsecond of the CPU's time each). The memory is never freed, because
captured graphs hold its address; it takes at most twice the largest request, and with the smaller
buffers that it replaced at most four times.
"""

from collections.abc import Callable, Sequence
from functools import cache, reduce
from operator import or_
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from triton import knobs
from triton.runtime import driver

from kernels.recorder import Address

Grid = tuple[int, int, int]

_ALIGNED: Final = 16
"""Triton compiles other code for addresses that it does not divide."""

_MAX_NUMBER: Final = 2**31 - 1
"""What a 32-bit argument holds; Triton compiles other code for more."""


class _Ready(NamedTuple):
    """A compiled kernel, bound to one device."""

    run: Callable[..., object]
    function: int
    metadata: object
    stream_of: Callable[[int], int]


class Launch:
    """A Triton kernel with its constants; call it with what changes.

    `constants` are the kernel's last parameters by name: compile-time constants, and numbers that
    stay the same. A kernel with a true `PDL` is launched so that it may begin early
    (`kernels.choose.has_pdl`). `options` are Triton's (`num_warps`, `num_stages`). Make one per set
    of constants and keep it: the first call compiles, the others only launch.
    """

    __slots__ = ("_constants", "_kernel", "_options", "_ready", "_tail")

    def __init__(self, kernel: Any, constants: dict[str, Any], **options: Any) -> None:  # noqa: ANN401
        """Raises `ValueError` if `constants` are not the kernel's last parameters."""
        names = kernel.arg_names[len(kernel.arg_names) - len(constants) :]
        if set(names) != constants.keys():
            raise ValueError(f"{sorted(constants)} are not the last parameters, {names}")
        self._kernel = kernel
        self._constants = constants
        self._options = (
            {"launch_pdl": constants["PDL"], **options} if "PDL" in constants else options
        )
        self._tail = tuple(constants[name] for name in names)
        self._ready: dict[tuple[object, ...], _Ready] = {}

    def __call__(
        self, grid: Grid, tensors: Sequence[Tensor], numbers: tuple[float, ...] = ()
    ) -> None:
        """Launch on the current stream of the tensors' device, which must be the current one.

        `tensors` are the kernel's first parameters, then come `numbers`, which it must not
        specialise. For a tensor that the kernel does not read pass any. Raises `ValueError` for
        integers beyond 32 bits, and at a first call for numbers that Triton would specialise.
        """
        device = tensors[0].get_device()
        addresses = [tensor.data_ptr() for tensor in tensors]
        key: tuple[object, ...] = (device, *[tensor.dtype for tensor in tensors])
        if reduce(or_, addresses) % _ALIGNED:
            key += tuple(address % _ALIGNED == 0 for address in addresses)
        for number in numbers:
            if not -_MAX_NUMBER <= number <= _MAX_NUMBER:
                raise ValueError(f"{number} has more than 32 bits")
        ready = self._ready.get(key)
        if ready is None or knobs.runtime.launch_enter_hook.calls:
            self._launch_by_triton(key, device, grid, tensors, numbers)
            return
        run, function, metadata, stream_of = ready
        run(
            *grid, stream_of(device), function, metadata, None, None, None,
            *addresses, *numbers, *self._tail,
        )  # fmt: skip

    def _launch_by_triton(
        self,
        key: tuple[object, ...],
        device: int,
        grid: Grid,
        tensors: Sequence[Tensor],
        numbers: tuple[float, ...],
    ) -> None:
        """Launch by Triton, and keep what it compiled."""
        if device >= 0 and driver.active.get_current_device() != device:
            raise ValueError(f"tensors on device {device}, not on the current one")
        given = [Address(x) for x in tensors] if tensors[0].is_meta else tensors
        compiled = self._kernel[grid](*given, *numbers, **self._constants, **self._options)
        if compiled is None:
            return
        for param in self._kernel.params[len(tensors) : len(tensors) + len(numbers)]:
            if not param.do_not_specialize:
                raise ValueError(f"{param.name} would be specialised: a number that changes")
        stream_of = driver.active.get_current_stream
        self._ready[key] = _Ready(
            compiled.run, compiled.function, compiled.packed_metadata, stream_of
        )


def scratch(device: torch.device, numbers: int) -> Tensor:
    """Float32 memory for at least `numbers` numbers, with undefined content."""
    return _scratch(device, max(0, numbers - 1).bit_length())


@cache
def _scratch(device: torch.device, bits: int) -> Tensor:
    return torch.empty(1 << bits, device=device, dtype=torch.float32)
