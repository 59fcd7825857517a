"""Measured configurations of weights in 8 bits: exceptions to the rule of `choose`.

Owns data that `python -m benchmarks.linear_table --fp8` writes; do not edit by hand. A key is the
operation, the rows (the next of 1, 2, 4, ... 256), and the weight's shape; None means the library.
Measured on NVIDIA H200, torch 2.11.0+cu130, triton 3.6.0.
"""

from typing import Final

from kernels.linear.config import Config, Gemv, Skinny, Wide

TUNED: Final[dict[tuple[str, int, int, int], Config | None]] = {
    ("norm_linear", 1, 4096, 1024): Gemv(4, 1024, 4),  # 2.5 us
    ("norm_linear", 2, 4096, 1024): Gemv(8, 1024, 4),  # 3.3 us
    ("norm_linear", 4, 4096, 1024): Skinny(64, 512, 1, 4, 3, True, 32768, True),  # 4.4 us
    ("norm_linear", 16, 4096, 1024): Skinny(64, 512, 1, 4, 3, True, 32768, True),  # 4.3 us
    ("norm_linear", 32, 4096, 1024): Skinny(64, 256, 2, 4, 3, True, 32768, True),  # 5.7 us
    ("norm_linear", 64, 4096, 1024): Skinny(64, 128, 2, 4, 4, True, 32768, True),  # 7.2 us
    ("norm_linear", 128, 4096, 1024): None,  # 9.5 us
    ("norm_linear", 192, 4096, 1024): None,  # 9.5 us
    ("norm_linear", 256, 4096, 1024): None,  # 9.6 us
    ("linear_add", 1, 1024, 2048): Gemv(2, 2048, 8),  # 1.8 us
    ("linear_add", 2, 1024, 2048): Gemv(4, 1024, 4),  # 2.5 us
    ("linear_add", 4, 1024, 2048): Skinny(64, 256, 4, 4, 4, True, 32768, True),  # 5.1 us
    ("linear_add", 16, 1024, 2048): Skinny(64, 256, 4, 4, 3, True, 32768, True),  # 5.1 us
    ("linear_add", 32, 1024, 2048): Skinny(64, 256, 4, 4, 4, True, 32768, True),  # 5.6 us
    ("linear_add", 64, 1024, 2048): Skinny(64, 256, 4, 4, 3, True, 32768, True),  # 6.3 us
    ("linear_add", 128, 1024, 2048): Skinny(64, 128, 4, 4, 4, True, 32768, True),  # 10.5 us
    ("linear_add", 192, 1024, 2048): None,  # 13.5 us
    ("linear_add", 256, 1024, 2048): Skinny(64, 128, 4, 4, 4, True, 32768, True),  # 11.3 us
    ("norm_swiglu", 1, 6144, 1024): Gemv(8, 512, 2),  # 3.1 us
    ("norm_swiglu", 2, 6144, 1024): Skinny(64, 512, 1, 4, 3, True, 32768, True),  # 5.2 us
    ("norm_swiglu", 4, 6144, 1024): Skinny(64, 512, 1, 4, 3, True, 32768, True),  # 5.2 us
    ("norm_swiglu", 16, 6144, 1024): Skinny(64, 512, 1, 4, 3, True, 32768, True),  # 5.0 us
    ("norm_swiglu", 32, 6144, 1024): Skinny(64, 128, 2, 4, 4, True, 32768, True),  # 6.9 us
    ("norm_swiglu", 64, 6144, 1024): Skinny(128, 128, 2, 8, 4, True, 32768, True),  # 8.0 us
    ("norm_swiglu", 128, 6144, 1024): None,  # 10.8 us
    ("norm_swiglu", 192, 6144, 1024): None,  # 11.0 us
    ("norm_swiglu", 256, 6144, 1024): Skinny(128, 128, 1, 8, 4, True, 32768, True),  # 7.8 us
    ("linear_add", 1, 1024, 3072): Gemv(2, 2048, 8),  # 2.2 us
    ("linear_add", 2, 1024, 3072): Gemv(4, 1024, 4),  # 2.7 us
    ("linear_add", 4, 1024, 3072): Skinny(64, 512, 3, 4, 3, True, 32768, True),  # 5.5 us
    ("linear_add", 16, 1024, 3072): Skinny(64, 512, 3, 4, 3, True, 32768, True),  # 5.5 us
    ("linear_add", 32, 1024, 3072): Skinny(64, 256, 3, 4, 4, True, 32768, True),  # 6.2 us
    ("linear_add", 64, 1024, 3072): Skinny(64, 256, 3, 4, 3, True, 32768, True),  # 7.1 us
    ("linear_add", 128, 1024, 3072): Skinny(64, 128, 6, 4, 4, True, 32768, True),  # 12.7 us
    ("linear_add", 192, 1024, 3072): None,  # 16.0 us
    ("linear_add", 256, 1024, 3072): Skinny(64, 64, 8, 4, 4),  # 14.5 us
    ("norm_linear", 1, 6144, 4096): Gemv(4, 1024, 4),  # 8.2 us
    ("norm_linear", 2, 6144, 4096): Skinny(128, 256, 2, 8, 3, True, 32768, True),  # 11.1 us
    ("norm_linear", 4, 6144, 4096): Skinny(128, 256, 2, 8, 3, True, 32768, True),  # 10.7 us
    ("norm_linear", 16, 6144, 4096): Wide(2, 2, True),  # 8.7 us
    ("norm_linear", 32, 6144, 4096): Skinny(64, 128, 2, 4, 4, True, 32768, True),  # 11.2 us
    ("norm_linear", 64, 6144, 4096): Wide(2, 2, True),  # 10.1 us
    ("norm_linear", 128, 6144, 4096): Wide(2, 2, True),  # 12.8 us
    ("norm_linear", 192, 6144, 4096): Wide(2, 2, True),  # 16.5 us
    ("norm_linear", 256, 6144, 4096): Skinny(128, 128, 1, 8, 4, True, 32768, True),  # 16.4 us
    ("linear_add", 1, 4096, 4096): Gemv(4, 512, 2),  # 5.7 us
    ("linear_add", 2, 4096, 4096): Gemv(4, 1024, 4),  # 8.8 us
    ("linear_add", 4, 4096, 4096): Skinny(64, 512, 2, 4, 3, True, 32768, True),  # 8.8 us
    ("linear_add", 16, 4096, 4096): Wide(2, 2, True),  # 6.8 us
    ("linear_add", 32, 4096, 4096): Skinny(64, 256, 3, 4, 3, True, 32768, True),  # 9.9 us
    ("linear_add", 64, 4096, 4096): Wide(2, 2, True),  # 8.2 us
    ("linear_add", 128, 4096, 4096): Wide(1, 2, True),  # 10.7 us
    ("linear_add", 192, 4096, 4096): Wide(2, 3, True),  # 14.2 us
    ("linear_add", 256, 4096, 4096): Wide(2, 2, False, 2, 128),  # 16.7 us
    ("norm_swiglu", 1, 24576, 4096): Gemv(4, 1024, 4),  # 24.7 us
    ("norm_swiglu", 2, 24576, 4096): Skinny(128, 256, 1, 8, 3, True, 32768, True),  # 29.6 us
    ("norm_swiglu", 4, 24576, 4096): Skinny(128, 256, 1, 8, 3, True, 32768, True),  # 29.4 us
    ("norm_swiglu", 16, 24576, 4096): Wide(3, 1),  # 25.7 us
    ("norm_swiglu", 32, 24576, 4096): Skinny(64, 256, 1, 4, 3, True, 32768, True),  # 28.7 us
    ("norm_swiglu", 64, 24576, 4096): Skinny(64, 128, 1, 4, 4, True, 32768, True),  # 29.0 us
    ("norm_swiglu", 128, 24576, 4096): Wide(3, 1, False, 0, 0, 8, 256),  # 33.6 us
    ("norm_swiglu", 192, 24576, 4096): Wide(3, 1),  # 36.9 us
    ("norm_swiglu", 256, 24576, 4096): Wide(3, 1),  # 44.7 us
    ("linear_add", 1, 4096, 12288): Gemv(2, 2048, 8),  # 13.6 us
    ("linear_add", 2, 4096, 12288): Skinny(64, 512, 2, 4, 3, True, 32768, True),  # 17.6 us
    ("linear_add", 4, 4096, 12288): Skinny(64, 512, 2, 4, 3, True, 32768, True),  # 17.6 us
    ("linear_add", 16, 4096, 12288): Wide(2, 3, True),  # 14.8 us
    ("linear_add", 32, 4096, 12288): Skinny(64, 256, 3, 4, 3, True, 32768, True),  # 18.8 us
    ("linear_add", 64, 4096, 12288): Wide(1, 2, True, 0, 0, 20),  # 16.4 us
    ("linear_add", 128, 4096, 12288): Wide(1, 2, True),  # 20.2 us
    ("linear_add", 192, 4096, 12288): Wide(2, 3, True),  # 24.2 us
    ("linear_add", 256, 4096, 12288): Wide(1, 2, True),  # 30.0 us
    ("norm_linear", 1, 16384, 5120): Gemv(4, 1024, 4),  # 20.2 us
    ("linear_add", 1, 5120, 6144): Gemv(4, 2048, 8),  # 9.2 us
    ("norm_swiglu", 1, 34816, 5120): Gemv(4, 1024, 4),  # 40.8 us
    ("linear_add", 1, 5120, 17408): Gemv(2, 2048, 8),  # 21.8 us
    ("norm_linear", 1, 8192, 5120): Gemv(4, 1024, 4),  # 11.8 us
    ("norm_linear", 1, 6144, 5120): Gemv(4, 1024, 4),  # 9.4 us
    ("norm_linear", 64, 16384, 5120): Skinny(64, 256, 1, 4, 3, True, 32768, True),  # 25.3 us
    ("linear_add", 64, 5120, 6144): Wide(2, 2, True),  # 12.2 us
    ("norm_swiglu", 64, 34816, 5120): Wide(3, 1),  # 49.5 us
    ("linear_add", 64, 5120, 17408): Wide(3, 3, True),  # 29.9 us
    ("norm_linear", 64, 8192, 5120): Skinny(64, 256, 2, 4, 3, True, 32768, True),  # 17.4 us
    ("norm_linear", 64, 6144, 5120): Skinny(64, 256, 2, 4, 3, True, 32768, True),  # 14.4 us
    ("norm_linear", 128, 10240, 4096): None,  # 18.7 us
    ("norm_linear", 128, 151936, 4096): None,  # 165.6 us
    ("norm_linear", 192, 16384, 5120): Wide(2, 1),  # 34.3 us
    ("linear_add", 192, 5120, 6144): Wide(3, 2, False, 2, 96),  # 20.1 us
    ("norm_swiglu", 192, 34816, 5120): Wide(3, 1),  # 80.9 us
    ("linear_add", 192, 5120, 17408): Wide(3, 3, True),  # 42.5 us
}
