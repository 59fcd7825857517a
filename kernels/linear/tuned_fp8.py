"""Measured configurations of weights in 8 bits: exceptions to the rule of `choose`.

Owns data that `python -m benchmarks.linear_table --fp8` writes; do not edit by hand. A key is the
operation, the rows (the next of 1, 2, 4, ... 128), and the weight's shape; None means the library.
Measured on NVIDIA H200, torch 2.11.0+cu130, triton 3.6.0.
"""

from typing import Final

from kernels.linear.config import Config, Gemv, Skinny

TUNED: Final[dict[tuple[str, int, int, int], Config | None]] = {
    ("norm_linear", 1, 4096, 1024): Gemv(4, 1024, 4),  # 2.5 us
    ("norm_linear", 2, 4096, 1024): Gemv(8, 1024, 4),  # 3.3 us
    ("norm_linear", 4, 4096, 1024): Skinny(64, 256, 2, 4, 4, False),  # 6.0 us
    ("norm_linear", 16, 4096, 1024): Skinny(64, 128, 4, 4, 4, False),  # 6.0 us
    ("norm_linear", 32, 4096, 1024): Skinny(64, 256, 2, 4, 3, False),  # 6.5 us
    ("norm_linear", 64, 4096, 1024): Skinny(128, 128, 4, 8, 3),  # 8.0 us
    ("norm_linear", 128, 4096, 1024): None,  # 9.4 us
    ("linear_add", 1, 1024, 2048): Gemv(2, 2048, 8),  # 1.8 us
    ("linear_add", 2, 1024, 2048): Gemv(4, 1024, 4),  # 2.5 us
    ("linear_add", 4, 1024, 2048): Skinny(64, 256, 4, 4, 4),  # 6.0 us
    ("linear_add", 16, 1024, 2048): Skinny(64, 256, 4, 4, 4),  # 6.0 us
    ("linear_add", 32, 1024, 2048): Skinny(64, 256, 4, 4, 3),  # 6.7 us
    ("linear_add", 64, 1024, 2048): Skinny(64, 128, 8, 4, 4),  # 8.9 us
    ("linear_add", 128, 1024, 2048): Skinny(64, 64, 8, 4, 4),  # 12.6 us
    ("norm_swiglu", 1, 6144, 1024): Gemv(8, 512, 2),  # 3.1 us
    ("norm_swiglu", 2, 6144, 1024): Gemv(4, 1024, 4),  # 5.4 us
    ("norm_swiglu", 4, 6144, 1024): Skinny(64, 256, 2, 4, 3),  # 7.0 us
    ("norm_swiglu", 16, 6144, 1024): Skinny(64, 256, 2, 4, 3),  # 6.7 us
    ("norm_swiglu", 32, 6144, 1024): Skinny(64, 128, 4, 4, 4),  # 7.8 us
    ("norm_swiglu", 64, 6144, 1024): Skinny(128, 128, 2, 8, 3),  # 10.1 us
    ("norm_swiglu", 128, 6144, 1024): None,  # 10.7 us
    ("linear_add", 1, 1024, 3072): Gemv(2, 2048, 8),  # 2.2 us
    ("linear_add", 2, 1024, 3072): Gemv(2, 1024, 4),  # 2.7 us
    ("linear_add", 4, 1024, 3072): Skinny(64, 256, 6, 4, 4),  # 6.6 us
    ("linear_add", 16, 1024, 3072): Skinny(64, 256, 6, 4, 4),  # 6.5 us
    ("linear_add", 32, 1024, 3072): Skinny(64, 256, 6, 4, 3),  # 7.1 us
    ("linear_add", 64, 1024, 3072): Skinny(64, 128, 6, 4, 4),  # 9.7 us
    ("linear_add", 128, 1024, 3072): Skinny(64, 64, 8, 4, 4),  # 13.8 us
    ("norm_linear", 1, 6144, 4096): Gemv(8, 2048, 8),  # 8.1 us
    ("norm_linear", 2, 6144, 4096): Skinny(128, 128, 5, 8, 4, False),  # 14.7 us
    ("norm_linear", 4, 6144, 4096): Skinny(128, 128, 5, 8, 4, False),  # 14.6 us
    ("norm_linear", 16, 6144, 4096): Skinny(64, 256, 4, 4, 3, False),  # 13.9 us
    ("norm_linear", 32, 6144, 4096): Skinny(128, 128, 5, 8, 4, False),  # 16.3 us
    ("norm_linear", 64, 6144, 4096): None,  # 16.7 us
    ("norm_linear", 128, 6144, 4096): None,  # 17.0 us
    ("linear_add", 1, 4096, 4096): Gemv(4, 512, 2),  # 5.6 us
    ("linear_add", 2, 4096, 4096): Gemv(4, 1024, 4),  # 8.6 us
    ("linear_add", 4, 4096, 4096): Skinny(128, 256, 4, 8, 3),  # 10.0 us
    ("linear_add", 16, 4096, 4096): Skinny(128, 256, 4, 8, 3),  # 10.0 us
    ("linear_add", 32, 4096, 4096): Skinny(64, 256, 4, 4, 3),  # 10.9 us
    ("linear_add", 64, 4096, 4096): Skinny(64, 128, 4, 4, 4),  # 14.3 us
    ("linear_add", 128, 4096, 4096): None,  # 18.6 us
    ("norm_swiglu", 1, 24576, 4096): Gemv(4, 1024, 4),  # 24.5 us
    ("norm_swiglu", 2, 24576, 4096): None,  # 36.4 us
    ("norm_swiglu", 4, 24576, 4096): None,  # 34.9 us
    ("norm_swiglu", 16, 24576, 4096): Skinny(64, 256, 1, 4, 3, False),  # 33.8 us
    ("norm_swiglu", 32, 24576, 4096): None,  # 36.5 us
    ("norm_swiglu", 64, 24576, 4096): None,  # 37.7 us
    ("norm_swiglu", 128, 24576, 4096): None,  # 36.8 us
    ("linear_add", 1, 4096, 12288): Gemv(2, 2048, 8),  # 13.4 us
    ("linear_add", 2, 4096, 12288): Skinny(64, 256, 6, 4, 3),  # 21.0 us
    ("linear_add", 4, 4096, 12288): Skinny(64, 256, 6, 4, 3),  # 21.6 us
    ("linear_add", 16, 4096, 12288): Skinny(64, 256, 6, 4, 3),  # 19.7 us
    ("linear_add", 32, 4096, 12288): Skinny(64, 256, 4, 4, 3),  # 22.8 us
    ("linear_add", 64, 4096, 12288): Skinny(64, 128, 4, 4, 4),  # 29.4 us
    ("linear_add", 128, 4096, 12288): None,  # 37.9 us
}
