"""Measured configurations: exceptions to the rule of `choose`.

Owns data that `python -m benchmarks.linear_table` writes; do not edit by hand. A key is the
operation, the rows (the next of 1, 2, 4, ... 128), and the weight's shape; None means the library.
Measured on NVIDIA H200, torch 2.11.0+cu130, triton 3.6.0.
"""

from typing import Final

from kernels.linear.config import Config, Gemv, Skinny

TUNED: Final[dict[tuple[str, int, int, int], Config | None]] = {
    ("linear", 1, 12288, 4096): Gemv(4, 2048, 8),  # 23.1 us
    ("linear", 16, 12288, 4096): Skinny(64, 128, 1, 4, 3),  # 25.8 us
    ("linear", 64, 12288, 4096): None,  # 28.2 us
    ("linear", 1, 4096, 12288): Gemv(2, 2048, 8),  # 23.2 us
    ("linear", 16, 4096, 12288): Skinny(64, 256, 2, 4, 3),  # 25.9 us
    ("linear", 64, 4096, 12288): Skinny(64, 128, 4, 4, 3),  # 29.6 us
    ("norm_linear", 1, 4096, 1024): Gemv(4, 1024, 4),  # 2.9 us
    ("norm_linear", 2, 4096, 1024): Gemv(8, 1024, 4),  # 4.1 us
    ("norm_linear", 4, 4096, 1024): Skinny(64, 256, 2, 4, 3),  # 5.3 us
    ("norm_linear", 16, 4096, 1024): Skinny(64, 256, 1, 4, 3),  # 4.9 us
    ("norm_linear", 32, 4096, 1024): Skinny(128, 128, 4, 8, 3),  # 6.5 us
    ("norm_linear", 64, 4096, 1024): None,  # 7.8 us
    ("norm_linear", 128, 4096, 1024): None,  # 7.8 us
    ("linear_add", 1, 1024, 2048): Gemv(2, 2048, 8),  # 2.0 us
    ("linear_add", 2, 1024, 2048): Gemv(1, 1024, 4),  # 2.9 us
    ("linear_add", 4, 1024, 2048): Gemv(1, 1024, 4),  # 4.2 us
    ("linear_add", 16, 1024, 2048): Skinny(64, 256, 4, 4, 3),  # 4.3 us
    ("linear_add", 32, 1024, 2048): Skinny(64, 128, 4, 4, 4),  # 5.8 us
    ("linear_add", 64, 1024, 2048): None,  # 5.9 us
    ("linear_add", 128, 1024, 2048): None,  # 6.2 us
    ("norm_swiglu", 1, 6144, 1024): Gemv(4, 512, 2),  # 3.9 us
    ("norm_swiglu", 2, 6144, 1024): Gemv(4, 1024, 4),  # 5.9 us
    ("norm_swiglu", 4, 6144, 1024): Skinny(64, 256, 1, 4, 3),  # 6.6 us
    ("norm_swiglu", 16, 6144, 1024): Skinny(64, 256, 1, 4, 3, False),  # 6.0 us
    ("norm_swiglu", 32, 6144, 1024): Skinny(64, 64, 4, 4, 6),  # 7.6 us
    ("norm_swiglu", 64, 6144, 1024): Skinny(128, 128, 2, 8, 3, False),  # 9.1 us
    ("norm_swiglu", 128, 6144, 1024): Skinny(64, 64, 1, 4, 5, False),  # 7.6 us
    ("linear_add", 1, 1024, 3072): Gemv(1, 1024, 4),  # 2.7 us
    ("linear_add", 2, 1024, 3072): Gemv(1, 1024, 4),  # 3.3 us
    ("linear_add", 4, 1024, 3072): Gemv(1, 1024, 4),  # 5.0 us
    ("linear_add", 16, 1024, 3072): Skinny(64, 256, 6, 4, 3),  # 5.1 us
    ("linear_add", 32, 1024, 3072): Skinny(128, 128, 6, 8, 3),  # 6.8 us
    ("linear_add", 64, 1024, 3072): Skinny(128, 128, 6, 8, 3),  # 8.5 us
    ("linear_add", 128, 1024, 3072): Skinny(64, 64, 4, 4, 5),  # 8.6 us
    ("norm_linear", 1, 151936, 1024): Gemv(8, 512, 2),  # 69.0 us
    ("norm_linear", 2, 151936, 1024): Skinny(128, 128, 1, 8, 3),  # 76.5 us
    ("norm_linear", 4, 151936, 1024): Skinny(128, 128, 1, 8, 3),  # 75.6 us
    ("norm_linear", 16, 151936, 1024): Skinny(128, 128, 1, 8, 3, False),  # 75.4 us
    ("norm_linear", 32, 151936, 1024): Skinny(64, 128, 1, 4, 3, False),  # 77.7 us
    ("norm_linear", 64, 151936, 1024): Skinny(64, 64, 1, 4, 4, False),  # 82.0 us
    ("norm_linear", 128, 151936, 1024): None,  # 91.4 us
    ("norm_linear", 1, 6144, 4096): Gemv(4, 1024, 4),  # 12.6 us
    ("norm_linear", 2, 6144, 4096): Gemv(2, 1024, 4),  # 17.6 us
    ("norm_linear", 4, 6144, 4096): Skinny(64, 128, 4, 4, 3),  # 17.7 us
    ("norm_linear", 16, 6144, 4096): Skinny(64, 256, 1, 4, 3, False),  # 15.7 us
    ("norm_linear", 32, 6144, 4096): Skinny(64, 128, 2, 4, 4, False),  # 17.4 us
    ("norm_linear", 64, 6144, 4096): None,  # 18.8 us
    ("norm_linear", 128, 6144, 4096): None,  # 19.5 us
    ("linear_add", 1, 4096, 4096): Gemv(2, 1024, 4),  # 9.0 us
    ("linear_add", 2, 4096, 4096): Gemv(2, 1024, 4),  # 10.9 us
    ("linear_add", 4, 4096, 4096): Skinny(64, 128, 4, 4, 4),  # 11.5 us
    ("linear_add", 16, 4096, 4096): Skinny(64, 256, 2, 4, 3),  # 11.0 us
    ("linear_add", 32, 4096, 4096): Skinny(64, 128, 2, 4, 4),  # 12.1 us
    ("linear_add", 64, 4096, 4096): None,  # 12.0 us
    ("linear_add", 128, 4096, 4096): None,  # 13.8 us
    ("norm_swiglu", 1, 24576, 4096): Gemv(4, 1024, 4),  # 44.8 us
    ("norm_swiglu", 2, 24576, 4096): None,  # 51.0 us
    ("norm_swiglu", 4, 24576, 4096): None,  # 51.4 us
    ("norm_swiglu", 16, 24576, 4096): Skinny(64, 128, 1, 4, 3, False),  # 48.8 us
    ("norm_swiglu", 32, 24576, 4096): Skinny(64, 128, 1, 4, 3, False),  # 49.7 us
    ("norm_swiglu", 64, 24576, 4096): Skinny(64, 64, 1, 4, 4, False),  # 52.3 us
    ("norm_swiglu", 128, 24576, 4096): None,  # 59.6 us
    ("linear_add", 1, 4096, 12288): Gemv(2, 2048, 8),  # 23.3 us
    ("linear_add", 2, 4096, 12288): Skinny(64, 128, 4, 4, 4),  # 27.6 us
    ("linear_add", 4, 4096, 12288): Skinny(64, 256, 2, 4, 3),  # 27.3 us
    ("linear_add", 16, 4096, 12288): Skinny(64, 256, 2, 4, 3),  # 26.6 us
    ("linear_add", 32, 4096, 12288): Skinny(64, 128, 4, 4, 4),  # 28.3 us
    ("linear_add", 64, 4096, 12288): Skinny(64, 128, 4, 4, 3),  # 30.2 us
    ("linear_add", 128, 4096, 12288): None,  # 33.8 us
    ("norm_linear", 1, 151936, 4096): Gemv(8, 2048, 8),  # 268.1 us
    ("norm_linear", 2, 151936, 4096): Skinny(128, 128, 1, 8, 3),  # 281.0 us
    ("norm_linear", 4, 151936, 4096): Skinny(128, 128, 1, 8, 3),  # 280.1 us
    ("norm_linear", 16, 151936, 4096): Skinny(128, 128, 1, 8, 3, False),  # 281.1 us
    ("norm_linear", 32, 151936, 4096): Skinny(64, 128, 1, 4, 3, False),  # 287.6 us
    ("norm_linear", 64, 151936, 4096): Skinny(128, 128, 1, 8, 3, False),  # 299.1 us
    ("norm_linear", 128, 151936, 4096): None,  # 319.1 us
}
