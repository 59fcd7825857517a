"""Which products become CUDA C++, on a Hopper card that only notes what would be launched.

Run as a program, without the interpreter: the test's own process has Triton interpret.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.cuda import hopper
from kernels.fp8 import FP8, Fp8Weight
from kernels.linear import adds_bias_apart, linear, linear_add, norm_swiglu, wide
from kernels.recorder import pretend_device, record_launches
from tests.fakes.uninterpreted import run_checks

H200 = 90
META = torch.device("meta")
ROWS, DEPTH, FEATURES = 100, 4096, 2056
WEIGHT = torch.empty(FEATURES, DEPTH, dtype=torch.bfloat16, device=META)


def _rows(width: int, first: int = 0) -> Tensor:
    """Contiguous, from the element `first` of an allocation on."""
    room = torch.empty(ROWS * width + first, dtype=torch.bfloat16, device=META)
    return room[first:].view(ROWS, width)


def _is_wide(product: Callable[[], Tensor]) -> bool:
    with record_launches() as recorded:
        product()
    return any(kernel.module == wide.__name__ for kernel in recorded.values())


def check_features() -> None:
    """A SwiGLU's are half of the weight's rows; the kernel stores four at once."""
    norm = torch.empty(DEPTH, dtype=torch.bfloat16, device=META)
    assert _is_wide(lambda: norm_swiglu(_rows(DEPTH), norm, 1e-6, WEIGHT))
    assert not _is_wide(lambda: norm_swiglu(_rows(DEPTH), norm, 1e-6, WEIGHT[:-4]))
    assert _is_wide(lambda: linear(_rows(DEPTH), WEIGHT[:-4]))
    assert not _is_wide(lambda: linear(_rows(DEPTH), WEIGHT[:-6]))


def check_addresses() -> None:
    """The copy engine reads from multiples of 16 bytes, and residuals are read eight at once."""
    assert _is_wide(lambda: linear(_rows(DEPTH, 8), WEIGHT))
    assert not _is_wide(lambda: linear(_rows(DEPTH, 4), WEIGHT))
    assert _is_wide(lambda: linear_add(_rows(DEPTH), WEIGHT, _rows(FEATURES)))
    assert not _is_wide(lambda: linear_add(_rows(DEPTH), WEIGHT, _rows(FEATURES, 2)))


def check_biases() -> None:
    """Products with biases become CUDA C++, except a SwiGLU, where the biases lie at such
    addresses.
    """
    room = torch.empty(FEATURES + 8, dtype=torch.bfloat16, device=META)
    assert _is_wide(lambda: linear(_rows(DEPTH), WEIGHT, room[:FEATURES]))
    assert _is_wide(lambda: linear_add(_rows(DEPTH), WEIGHT, _rows(FEATURES), room[8:]))
    assert not _is_wide(lambda: linear(_rows(DEPTH), WEIGHT, room[4 : FEATURES + 4]))


def check_biases_apart() -> None:
    """Of many rows, which the library multiplies and adds to a residual, but to no bias as well."""
    bias = torch.empty(FEATURES, dtype=torch.bfloat16, device=META)
    many, few = (torch.empty(rows, DEPTH, dtype=torch.bfloat16, device=META) for rows in (300, 256))
    assert adds_bias_apart(many, WEIGHT, bias)
    assert not adds_bias_apart(few, WEIGHT, bias)
    assert not adds_bias_apart(many[:0], WEIGHT, bias)
    assert not adds_bias_apart(many, WEIGHT, bias, invariant=True)
    in_8_bits = Fp8Weight(WEIGHT.to(FP8), torch.empty(FEATURES, device=META))
    assert not adds_bias_apart(many, in_8_bits, bias)
    assert not adds_bias_apart(torch.empty(300, 8), torch.empty(4, 8), torch.empty(4))


if __name__ == "__main__":
    hopper.has_compiler = lambda: True
    pretend_device(H200)
    run_checks(globals())
