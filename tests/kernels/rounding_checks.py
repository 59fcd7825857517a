"""Which products round their rows to 8 bits, on a Hopper card that only notes what would be
launched: `rounds_rows` says so of each that launches the kernel which rounds.

Run as a program, without the interpreter: the test's own process has Triton interpret.
"""

from functools import partial

import torch
from torch import Tensor

from kernels.cuda import hopper
from kernels.fp8 import DualWeight, Fp8Weight
from kernels.linear import Op, linear, linear_add, norm_linear, norm_swiglu, rounds_rows
from kernels.linear.choose import TUNED_ROWS_FP8
from kernels.recorder import pretend_device, record_launches
from tests.fakes.uninterpreted import run_checks

H200 = 90
META = torch.device("meta")
FP8 = torch.float8_e4m3fn
empty = partial(torch.empty, device=META)

HYBRID_27B = (
    (Op.NORM_LINEAR, 16_384, 5_120),
    (Op.NORM_LINEAR, 8_192, 5_120),
    (Op.LINEAR_ADD, 5_120, 6_144),
    (Op.NORM_SWIGLU, 34_816, 5_120),
    (Op.LINEAR_ADD, 5_120, 17_408),
)
OTHERS = (
    (Op.NORM_LINEAR, 4_096, 1_024),
    (Op.LINEAR_ADD, 1_024, 3_072),
    (Op.NORM_SWIGLU, 24_576, 4_096),
    (Op.NORM_LINEAR, 151_936, 4_096),
    (Op.LINEAR, 330, 160),
)
ROWS = (*TUNED_ROWS_FP8, 8, 300, 4_096)


def _weight(rows: int, depth: int, *, by_block: bool = False) -> Fp8Weight:
    blocks = (-(-rows // 128), -(-depth // 128))
    return Fp8Weight(
        empty(rows, depth, dtype=FP8), empty(*(blocks if by_block else (rows,)), dtype=torch.float)
    )


def _rounds(op: Op, num_rows: int, weight: Fp8Weight | DualWeight, dtype: torch.dtype) -> bool:
    """Whether the rounding kernel is among the launches."""
    x, norm = empty(num_rows, weight.shape[1], dtype=dtype), empty(weight.shape[1], dtype=dtype)
    residual: Tensor = empty(num_rows, weight.shape[0], dtype=dtype)
    with record_launches() as recorded:
        match op:
            case Op.LINEAR:
                linear(x, weight)
            case Op.NORM_LINEAR:
                norm_linear(x, norm, 1e-6, weight)
            case Op.NORM_SWIGLU:
                norm_swiglu(x, norm, 1e-6, weight)
            case Op.LINEAR_ADD:
                linear_add(x, weight, residual)
    return any("quantize_rows" in kernel.name for kernel in recorded.values())


def check_every_product() -> None:
    """Every product with weights by row, by block and in both forms, from one row to those of a
    prompt.
    """
    for op, rows, depth in (*HYBRID_27B, *OTHERS):
        dense = empty(rows, depth, dtype=torch.bfloat16)
        weights = [_weight(rows, depth), DualWeight(dense, _weight(rows, depth))]
        if op is not Op.NORM_SWIGLU or rows // 2 % 128 == 0:
            weights.append(_weight(rows, depth, by_block=True))
        for weight in weights:
            for number in ROWS:
                found = _rounds(op, number, weight, torch.bfloat16)
                said = rounds_rows(op, number, weight, dense)
                assert found == said, (op, number, rows, depth, type(weight), found)


def check_decodes_of_a_hybrid() -> None:
    """One row is multiplied as it is, eight and sixty-four are rounded."""
    like = empty(1, dtype=torch.bfloat16)
    for op, rows, depth in HYBRID_27B:
        said = [rounds_rows(op, number, _weight(rows, depth), like) for number in (1, 8, 64)]
        assert said == [False, True, True], (op, rows, depth, said)


if __name__ == "__main__":
    hopper.has_compiler = lambda: True
    pretend_device(H200)
    run_checks(globals())
