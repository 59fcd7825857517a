"""Counter-based noise: the same numbers on every device, for every batch and after a restart.

Owns the one definition of Herma's sampling noise, `reference`. A few numbers in the host's
memory are made by `cpu`; a fused kernel for CUDA tensors joins here.
"""

from torch import Tensor

from kernels.philox import cpu, reference
from kernels.philox.reference import philox4x32, to_uniform

__all__ = ["philox4x32", "to_uniform", "uniform_noise"]


def uniform_noise(seeds: Tensor, positions: Tensor, num_columns: int) -> Tensor:
    """Uniforms in (0, 1), float32 [rows, num_columns], one row per (seed, position).

    seeds and positions are int64 [rows]. Entry (row, i) is lane i % 4 of Philox4x32-10 (Salmon et
    al., 2011) with the 64-bit seed as key and the counter (i // 4, position, 0, 0), as
    u = ((x >> 9) + 0.5) * 2**-23. Raises `ValueError`.
    """
    if seeds.dim() != 1 or seeds.shape != positions.shape:
        raise ValueError(f"seeds {tuple(seeds.shape)}, positions {tuple(positions.shape)}")
    if seeds.is_cpu and seeds.shape[0] * num_columns <= cpu.MOST_NUMBERS:
        return cpu.uniform_noise(seeds, positions, num_columns)
    return reference.uniform_noise(seeds, positions, num_columns)
