"""A card for Triton that compiles for sm_90 and notes launches instead of making them.

Owns the driver that Triton is given, at Triton's own seam. Must not know our kernels. It needs no
GPU: tensors lie on the CPU, and what is compiled never runs.
"""

from typing import Any, ClassVar, NamedTuple

from triton.backends.compiler import GPUTarget


class Launched(NamedTuple):
    """What a compiled kernel's launcher was called with."""

    grid: tuple[int, int, int]
    stream: int
    pdl: bool
    arguments: tuple[Any, ...]


class Launcher:
    """Stands for the compiled glue of one kernel; its signature tells which arguments it reads."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self.signature = dict(src.signature)
        self.attributes = dict(src.attrs)
        self.pdl = metadata.launch_pdl

    def __call__(self, x: int, y: int, z: int, stream: int, *rest: Any) -> None:
        _function, _metadata, _launch_metadata, _enter, _exit, *given = rest
        kinds = self.signature.values()
        read = [a for a, kind in zip(given, kinds, strict=True) if kind != "constexpr"]
        places = [a if isinstance(a, int | float) else a.data_ptr() for a in read]
        attributes = str(sorted(self.attributes.items()))
        noted = (*places, *self.signature.values(), attributes)
        TritonCard.launched.append(Launched((x, y, z), stream, self.pdl, noted))


class TritonCard:
    """The active driver: `triton.runtime.driver.set_active(TritonCard())`."""

    launched: ClassVar[list[Launched]] = []
    stream = 11
    launcher_cls = Launcher

    def __init__(self) -> None:
        self.utils = self

    def load_binary(self, *_: Any) -> tuple[object, int, int, int, int]:
        """Module, function, registers, spills, threads."""
        return object(), 7, 32, 0, 1024

    def get_device_properties(self, _device: int) -> dict[str, int]:
        """The properties of an H200."""
        return {"max_shared_mem": 232_448, "multiprocessor_count": 132}

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, _device: int) -> int:
        """The stream that the test has set."""
        return self.stream

    def get_current_target(self) -> GPUTarget:
        """The target of an H200."""
        return GPUTarget("cuda", 90, 32)
