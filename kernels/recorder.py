"""A card that is not there: its launches are noted, so that their kernels can be compiled ahead.

Owns the notes and the driver that stands in for a card's. Tensors on torch's `meta` device lie on
that card: they have shapes and no memory, so the code of a whole step runs over them in
milliseconds and ends in a list of what it would have launched. There is no second list of kernels.
Must not know who wants them, nor any kernel.

Triton has both halves (3.6 and 3.7 alike): a hook that is shown every kernel before it is compiled,
with all that its compilation depends on as one string, and `JITFunction.preload`, which compiles
from such a string. What it compiles lies in Triton's cache, where any launch finds it.
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
    """A kernel with the types and constants of one launch: where it is, and Triton's own words."""

    module: str
    name: str
    specialisation: str

    @property
    def id(self) -> str:
        """Equal for equal compilations, in every process."""
        return sha256("\0".join(self).encode()).hexdigest()

    @property
    def num_parameters(self) -> int:
        """Constants among them."""
        return len(_function(self).arg_names)


class Address:
    """What Triton reads of a tensor on the card that is not there."""

    def __init__(self, tensor: Tensor) -> None:
        """Memory begins at an address that 16 divides, as torch's allocator has it."""
        self.dtype = tensor.dtype
        self._offset = int(tensor.storage_offset()) * tensor.itemsize

    def data_ptr(self) -> int:
        """Modulo what an allocation's own address is divided by."""
        return self._offset


class _Card:
    """Triton's driver for it: one device of compute capability `arch` / 10."""

    def __init__(self, arch: int) -> None:
        self._target = GPUTarget("cuda", arch, _WARP_SIZE)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


def pretend_device(arch: int) -> None:
    """From now on Triton in this process works for a card of that capability, 90 for 9.0."""
    driver.set_active(_Card(arch))


@contextmanager
def record_launches() -> Iterator[dict[str, RecordedKernel]]:
    """What is launched meanwhile, by id, in the order of the first launches; nothing runs."""
    noted: dict[str, RecordedKernel] = {}

    def note(kernel: RecordedKernel) -> bool:
        noted.setdefault(kernel.id, kernel)
        return True

    before = knobs.runtime.jit_cache_hook
    before_compiling(note)
    try:
        yield noted
    finally:
        knobs.runtime.jit_cache_hook = before


def before_compiling(call: Callable[[RecordedKernel], bool]) -> None:
    """`call` with each kernel that this process is about to compile, or to look for in the cache;
    if it says True, Triton does neither and launches nothing.
    """

    knobs.runtime.jit_cache_hook = _Hook(call)


def tell(kernel: RecordedKernel) -> None:
    """Of a kernel that is not Triton's, before it is compiled or looked for in the cache."""
    hook = knobs.runtime.jit_cache_hook
    if isinstance(hook, _Hook):
        hook.call(kernel)


class _Hook:
    def __init__(self, call: Callable[[RecordedKernel], bool]) -> None:
        self.call = call

    def __call__(self, *, fn: Any, compile: dict[str, Any], **_: object) -> bool:  # noqa: A002, ANN401
        return self.call(RecordedKernel(fn.module, fn.name, compile["specialization_data"]))


def compile_noted(kernel: RecordedKernel, *, with_launcher: bool) -> None:
    """Bring it into Triton's cache, unless it is there, and what launches it. Raises what Triton
    raises. Linking a launcher takes an NVIDIA driver; kernels that are not Triton's have none.
    """
    compiled = _function(kernel).preload(kernel.specialisation)
    if compiled is not None and with_launcher and hasattr(nvidia, "make_launcher"):
        # Triton 3.6 has the C compiler make one for every signature; 3.7 has one for all.
        nvidia.CudaLauncher(compiled.src, compiled.metadata)


def compile_driver() -> None:
    """Bring into the cache what Triton's own driver consists of: C, compiled at its first use."""
    nvidia.CudaUtils()


def _function(kernel: RecordedKernel) -> Any:  # noqa: ANN401 -- Triton is not typed
    return getattr(import_module(kernel.module), kernel.name)
