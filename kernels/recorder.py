"""A pretended device: its launches are recorded, so that their kernels can be compiled ahead.

Owns the records and the driver that stands in for a card's. Tensors on torch's `meta` device lie on
the pretended device: they have shapes and no memory, so the code of a whole step runs over them in
milliseconds and yields the list of its launches. So there is no second list of kernels to maintain.
Must not know any kernel, nor what the records are used for.

Triton 3.6 and 3.7 have both halves: a hook that gets every kernel before it is compiled, with all
that its compilation depends on in one string; and `JITFunction.preload`, which compiles from such a
string into Triton's cache, where any launch finds the kernel.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver

_WARP_SIZE = 32


class RecordedKernel(NamedTuple):
    """A kernel of one launch: its module and name, and Triton's key of types and constants."""

    module: str
    name: str
    specialisation: str

    @property
    def id(self) -> str:
        """Equal for equal compilations, in every process."""
        return sha256("\0".join(self).encode()).hexdigest()

    @property
    def num_parameters(self) -> int:
        """How many parameters the kernel has, constants included."""
        return len(_function(self).arg_names)


class Address:
    """The part of a tensor on the pretended device that Triton reads."""

    def __init__(self, tensor: Tensor) -> None:
        """Memory begins at an address that 16 divides, as torch's allocator has it."""
        self.dtype = tensor.dtype
        self._offset = int(tensor.storage_offset()) * tensor.itemsize

    def data_ptr(self) -> int:
        """Modulo what an allocation's own address is divided by."""
        return self._offset


class _Card:
    """Triton's driver for the pretended device of compute capability `arch` / 10."""

    def __init__(self, arch: int) -> None:
        self._target = GPUTarget("cuda", arch, _WARP_SIZE)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


def pretend_device(arch: int) -> None:
    """Have Triton in this process compile for a device of that capability, 90 for 9.0."""
    driver.set_active(_Card(arch))


@contextmanager
def record_launches() -> Iterator[dict[str, RecordedKernel]]:
    """The kernels launched meanwhile, by id, in the order of the first launches; nothing runs."""
    recorded: dict[str, RecordedKernel] = {}

    def note(kernel: RecordedKernel) -> bool:
        recorded.setdefault(kernel.id, kernel)
        return True

    before = knobs.runtime.jit_cache_hook
    on_compile(note)
    try:
        yield recorded
    finally:
        knobs.runtime.jit_cache_hook = before


def on_compile(call: Callable[[RecordedKernel], bool]) -> None:
    """Call `call` with each kernel that this process is about to compile or to look up in the
    cache. If it returns True, Triton does neither and launches nothing.
    """

    knobs.runtime.jit_cache_hook = _Hook(call)


def report(kernel: RecordedKernel) -> None:
    """Report a kernel that is not Triton's, before it is compiled or looked for in the cache."""
    hook = knobs.runtime.jit_cache_hook
    if isinstance(hook, _Hook):
        hook.call(kernel)


class _Hook:
    def __init__(self, call: Callable[[RecordedKernel], bool]) -> None:
        self.call = call

    def __call__(self, *, fn: Any, compile: dict[str, Any], **_: object) -> bool:  # noqa: A002, ANN401
        return self.call(RecordedKernel(fn.module, fn.name, compile["specialization_data"]))


def compile_recorded(kernel: RecordedKernel, *, with_launcher: bool) -> None:
    """Compile the kernel into Triton's cache, unless it is there, and its launcher, which needs an
    NVIDIA driver to link. Kernels that are not Triton's have no launcher. Raises what Triton
    raises.
    """
    compiled = _function(kernel).preload(kernel.specialisation)
    if compiled is not None and with_launcher and hasattr(nvidia, "make_launcher"):
        # Triton 3.6 has the C compiler make one for every signature; 3.7 has one for all.
        nvidia.CudaLauncher(compiled.src, compiled.metadata)


def compile_driver() -> None:
    """Compile Triton's own driver module, which is in C, into the cache."""
    nvidia.CudaUtils()


def _function(kernel: RecordedKernel) -> Any:  # noqa: ANN401 -- Triton is not typed
    return getattr(import_module(kernel.module), kernel.name)
