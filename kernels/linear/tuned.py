"""Measured configurations: exceptions to the rule of `choose`.

Owns data that `python -m benchmarks.linear_table` writes; do not edit by hand. A key is the
operation, the rows (the next of 1, 2, 4, ... 256), and the weight's shape; None means the library.
Measured on NVIDIA H200, torch 2.11.0+cu130, triton 3.6.0.
"""

from typing import Final

from kernels.linear.config import Config, Gemv, Skinny, Wide

TUNED: Final[dict[tuple[str, int, int, int], Config | None]] = {
    ("linear", 1, 12288, 4096): Gemv(4, 2048, 8),  # 23.6 us
    ("linear", 16, 12288, 4096): Skinny(64, 128, 1, 4, 3),  # 26.3 us
    ("linear", 64, 12288, 4096): None,  # 28.8 us
    ("linear", 1, 4096, 12288): Gemv(2, 2048, 8),  # 23.6 us
    ("linear", 16, 4096, 12288): Skinny(64, 256, 2, 4, 3),  # 26.6 us
    ("linear", 64, 4096, 12288): Skinny(64, 128, 4, 4, 3),  # 30.0 us
    ("norm_linear", 1, 4096, 1024): Gemv(4, 1024, 4),  # 2.8 us
    ("norm_linear", 2, 4096, 1024): Gemv(8, 1024, 4),  # 4.1 us
    ("norm_linear", 4, 4096, 1024): Skinny(64, 256, 2, 4, 3),  # 5.2 us
    ("norm_linear", 16, 4096, 1024): Skinny(64, 256, 1, 4, 3),  # 5.0 us
    ("norm_linear", 32, 4096, 1024): Skinny(128, 128, 4, 8, 3),  # 6.6 us
    ("norm_linear", 64, 4096, 1024): Skinny(64, 64, 1, 4, 5, False, 32768, False, 128),  # 6.0 us
    ("norm_linear", 128, 4096, 1024): Skinny(64, 64, 1, 4, 5, False, 32768, False, 64),  # 6.4 us
    ("norm_linear", 256, 4096, 1024): Skinny(64, 64, 1, 4, 5, False, 32768, False, 128),  # 7.2 us
    ("linear_add", 1, 1024, 2048): Gemv(2, 2048, 8),  # 2.1 us
    ("linear_add", 2, 1024, 2048): Gemv(1, 1024, 4),  # 2.9 us
    ("linear_add", 4, 1024, 2048): Gemv(1, 1024, 4),  # 4.2 us
    ("linear_add", 16, 1024, 2048): Skinny(64, 256, 4, 4, 3),  # 4.3 us
    ("linear_add", 32, 1024, 2048): None,  # 5.9 us
    ("linear_add", 64, 1024, 2048): Wide(2, 3, True),  # 4.7 us
    ("linear_add", 128, 1024, 2048): None,  # 6.2 us
    ("linear_add", 256, 1024, 2048): None,  # 6.6 us
    ("norm_swiglu", 1, 6144, 1024): Gemv(4, 512, 2),  # 3.9 us
    ("norm_swiglu", 2, 6144, 1024): Gemv(4, 1024, 4),  # 5.9 us
    ("norm_swiglu", 4, 6144, 1024): Skinny(64, 256, 1, 4, 3),  # 6.7 us
    ("norm_swiglu", 16, 6144, 1024): Skinny(64, 256, 1, 4, 3, False),  # 6.0 us
    ("norm_swiglu", 32, 6144, 1024): Skinny(64, 64, 4, 4, 6),  # 7.6 us
    ("norm_swiglu", 64, 6144, 1024): Skinny(64, 64, 1, 4, 5, False, 32768, False, 128),  # 7.0 us
    ("norm_swiglu", 128, 6144, 1024): Skinny(64, 64, 1, 4, 5, False, 32768, False, 128),  # 7.6 us
    ("norm_swiglu", 256, 6144, 1024): Skinny(128, 64, 1, 8, 4, False, 32768, False, 128),  # 9.7 us
    ("linear_add", 1, 1024, 3072): Gemv(1, 1024, 4),  # 2.7 us
    ("linear_add", 2, 1024, 3072): Gemv(1, 1024, 4),  # 3.3 us
    ("linear_add", 4, 1024, 3072): Gemv(1, 1024, 4),  # 5.0 us
    ("linear_add", 16, 1024, 3072): Skinny(64, 256, 6, 4, 3),  # 5.1 us
    ("linear_add", 32, 1024, 3072): Skinny(128, 128, 6, 8, 3),  # 6.8 us
    ("linear_add", 64, 1024, 3072): Wide(2, 3, True),  # 5.6 us
    ("linear_add", 128, 1024, 3072): Wide(1, 2, True),  # 8.1 us
    ("linear_add", 256, 1024, 3072): None,  # 7.7 us
    ("norm_linear", 1, 151936, 1024): Gemv(8, 512, 2),  # 70.4 us
    ("norm_linear", 2, 151936, 1024): Skinny(128, 128, 1, 8, 3),  # 77.2 us
    ("norm_linear", 4, 151936, 1024): Skinny(128, 128, 1, 8, 3),  # 76.6 us
    ("norm_linear", 16, 151936, 1024): Skinny(64, 128, 1, 4, 3, False),  # 77.0 us
    ("norm_linear", 32, 151936, 1024): Skinny(64, 128, 1, 4, 3, False),  # 78.8 us
    ("norm_linear", 64, 151936, 1024): Wide(3, 1),  # 81.8 us
    ("norm_linear", 128, 151936, 1024): None,  # 91.1 us
    ("norm_linear", 256, 151936, 1024): None,  # 120.6 us
    ("norm_linear", 1, 6144, 4096): Gemv(8, 2048, 8),  # 12.8 us
    ("norm_linear", 2, 6144, 4096): Gemv(4, 1024, 4),  # 17.8 us
    ("norm_linear", 4, 6144, 4096): Skinny(128, 128, 5, 8, 3),  # 17.8 us
    ("norm_linear", 16, 6144, 4096): Skinny(64, 256, 1, 4, 3, False),  # 15.9 us
    ("norm_linear", 32, 6144, 4096): Skinny(64, 128, 2, 4, 4, False),  # 17.4 us
    ("norm_linear", 64, 6144, 4096): Wide(2, 2, True, 0, 0, 20),  # 16.2 us
    ("norm_linear", 128, 6144, 4096): Wide(2, 2, True, 0, 0, 20),  # 18.6 us
    ("norm_linear", 256, 6144, 4096): None,  # 24.6 us
    ("linear_add", 1, 4096, 4096): Gemv(2, 1024, 4),  # 9.1 us
    ("linear_add", 2, 4096, 4096): Gemv(4, 1024, 4),  # 11.1 us
    ("linear_add", 4, 4096, 4096): Skinny(64, 128, 4, 4, 4),  # 11.6 us
    ("linear_add", 16, 4096, 4096): Skinny(64, 256, 2, 4, 3),  # 11.1 us
    ("linear_add", 32, 4096, 4096): Skinny(64, 128, 2, 4, 4),  # 12.3 us
    ("linear_add", 64, 4096, 4096): Wide(1, 2, True, 0, 0, 20),  # 10.6 us
    ("linear_add", 128, 4096, 4096): Wide(1, 2, True),  # 12.4 us
    ("linear_add", 256, 4096, 4096): None,  # 17.6 us
    ("norm_swiglu", 1, 24576, 4096): Gemv(4, 1024, 4),  # 45.5 us
    ("norm_swiglu", 2, 24576, 4096): None,  # 52.8 us
    ("norm_swiglu", 4, 24576, 4096): None,  # 53.1 us
    ("norm_swiglu", 16, 24576, 4096): Skinny(64, 128, 1, 4, 3, False),  # 49.9 us
    ("norm_swiglu", 32, 24576, 4096): Skinny(64, 128, 1, 4, 3, False),  # 50.7 us
    ("norm_swiglu", 64, 24576, 4096): Wide(3, 1),  # 50.8 us
    ("norm_swiglu", 128, 24576, 4096): Wide(3, 1),  # 53.8 us
    ("norm_swiglu", 256, 24576, 4096): Wide(3, 1),  # 80.4 us
    ("linear_add", 1, 4096, 12288): Gemv(2, 2048, 8),  # 23.6 us
    ("linear_add", 2, 4096, 12288): Skinny(64, 128, 4, 4, 4),  # 28.1 us
    ("linear_add", 4, 4096, 12288): Skinny(64, 256, 2, 4, 3),  # 28.0 us
    ("linear_add", 16, 4096, 12288): Skinny(64, 128, 4, 4, 4),  # 27.1 us
    ("linear_add", 32, 4096, 12288): Skinny(64, 128, 4, 4, 4),  # 28.7 us
    ("linear_add", 64, 4096, 12288): Wide(1, 2, True, 0, 0, 20),  # 25.8 us
    ("linear_add", 128, 4096, 12288): Wide(1, 2, True, 0, 0, 8, 256),  # 29.1 us
    ("linear_add", 256, 4096, 12288): None,  # 43.3 us
    ("norm_linear", 1, 151936, 4096): Gemv(8, 1024, 4),  # 272.6 us
    ("norm_linear", 2, 151936, 4096): Skinny(128, 128, 1, 8, 3),  # 286.8 us
    ("norm_linear", 4, 151936, 4096): Skinny(128, 128, 1, 8, 3),  # 285.9 us
    ("norm_linear", 16, 151936, 4096): Skinny(128, 128, 1, 8, 3, False),  # 286.3 us
    ("norm_linear", 32, 151936, 4096): Skinny(64, 128, 1, 4, 3, False),  # 293.3 us
    ("norm_linear", 64, 151936, 4096): Wide(2, 1),  # 295.7 us
    ("norm_linear", 128, 151936, 4096): Wide(3, 1),  # 317.5 us
    ("norm_linear", 256, 151936, 4096): None,  # 432.2 us
    ("norm_linear", 160, 4096, 1024): None,  # 7.9 us
    ("norm_linear", 208, 4096, 1024): None,  # 8.7 us
    ("linear_add", 160, 1024, 2048): None,  # 6.5 us
    ("linear_add", 208, 1024, 2048): None,  # 6.7 us
    ("norm_swiglu", 160, 6144, 1024): Wide(1, 1),  # 8.8 us
    ("norm_swiglu", 208, 6144, 1024): Wide(1, 1),  # 9.7 us
    ("linear_add", 160, 1024, 3072): None,  # 7.8 us
    ("linear_add", 208, 1024, 3072): None,  # 8.0 us
    ("norm_linear", 160, 151936, 1024): None,  # 97.3 us
    ("norm_linear", 208, 151936, 1024): None,  # 107.1 us
    ("norm_linear", 160, 6144, 4096): Wide(2, 2, True),  # 19.6 us
    ("norm_linear", 208, 6144, 4096): Wide(2, 2, True),  # 23.7 us
    ("linear_add", 160, 4096, 4096): Wide(1, 2, True),  # 13.3 us
    ("linear_add", 208, 4096, 4096): Wide(1, 2, True),  # 14.9 us
    ("norm_swiglu", 160, 24576, 4096): Wide(3, 1),  # 56.7 us
    ("norm_swiglu", 208, 24576, 4096): Wide(3, 1),  # 64.7 us
    ("linear_add", 160, 4096, 12288): Wide(2, 3, True),  # 31.4 us
    ("linear_add", 208, 4096, 12288): Wide(1, 2, True),  # 36.2 us
    ("norm_linear", 160, 151936, 4096): None,  # 327.5 us
    ("norm_linear", 208, 151936, 4096): None,  # 370.9 us
    ("norm_linear", 64, 16384, 5120): Wide(1, 1, True, 0, 0, 20, 128, 2),  # 42.0 us
    ("linear_add", 64, 5120, 6144): Wide(3, 4, True, 0, 0, 20),  # 17.8 us
    ("norm_swiglu", 64, 34816, 5120): Wide(3, 1, True, 0, 0, 20, 128, 2),  # 89.3 us
    ("linear_add", 64, 5120, 17408): Wide(3, 4, True, 0, 0, 20),  # 44.9 us
    ("norm_linear", 64, 8192, 5120): Wide(1, 2, True, 0, 0, 20, 128, 2),  # 23.0 us
    ("norm_linear", 64, 6144, 5120): Wide(1, 2, True, 0, 0, 20, 128, 2),  # 19.0 us
    ("norm_linear", 8, 16384, 5120): Wide(2, 1, True, 0, 0, 20),  # 39.5 us
    ("linear_add", 8, 5120, 6144): Wide(1, 4, True, 0, 0, 20, 128, 3),  # 15.5 us
    ("norm_swiglu", 8, 34816, 5120): Skinny(64, 128, 1, 4, 3, False),  # 90.9 us
    ("linear_add", 8, 5120, 17408): Wide(3, 4, True, 0, 0, 20),  # 42.5 us
    ("norm_linear", 8, 8192, 5120): Wide(1, 2, True, 0, 0, 20, 128, 2),  # 20.7 us
    ("norm_linear", 8, 6144, 5120): Wide(1, 2, True, 0, 0, 20, 128, 2),  # 16.5 us
    ("norm_linear", 32, 16384, 5120): Wide(2, 1, True, 0, 0, 20),  # 40.5 us
    ("linear_add", 32, 5120, 6144): Wide(1, 4, True, 0, 0, 20, 128, 3),  # 16.2 us
    ("norm_swiglu", 32, 34816, 5120): Wide(2, 1, True, 0, 0, 20, 128, 3),  # 85.9 us
    ("linear_add", 32, 5120, 17408): Wide(3, 4, True, 0, 0, 20),  # 43.0 us
    ("norm_linear", 32, 8192, 5120): Wide(1, 2, True, 0, 0, 20, 128, 2),  # 21.4 us
    ("norm_linear", 32, 6144, 5120): Wide(1, 2, True, 0, 0, 20, 128, 2),  # 17.6 us
    ("norm_linear", 128, 16384, 5120): Wide(2, 1, True, 0, 0, 20),  # 44.0 us
    ("linear_add", 128, 5120, 6144): None,  # 19.8 us
    ("norm_swiglu", 128, 34816, 5120): None,  # 100.2 us
    ("linear_add", 128, 5120, 17408): Wide(3, 4, True, 0, 0, 20),  # 48.0 us
    ("norm_linear", 128, 8192, 5120): Wide(1, 1, True, 0, 0, 20),  # 25.5 us
    ("norm_linear", 128, 6144, 5120): Wide(1, 1, True, 0, 0, 20),  # 21.1 us
    ("norm_linear", 64, 248320, 5120): Wide(3, 1),  # 593.7 us
    ("norm_linear", 1, 5120, 2048): Gemv(8, 512, 2),  # 6.0 us
    ("linear_add", 1, 2048, 4096): Gemv(8, 1024, 4),  # 5.0 us
    ("norm_linear", 1, 9216, 2048): Gemv(4, 512, 2),  # 10.1 us
    ("norm_linear", 1, 8192, 2048): Gemv(8, 1024, 4),  # 9.1 us
    ("norm_linear", 1, 4096, 2048): Gemv(8, 512, 2),  # 4.9 us
    ("norm_linear", 1, 5120, 2880): Gemv(4, 512, 2),  # 8.4 us
    ("linear_add", 1, 2880, 4096): Gemv(4, 512, 2),  # 6.9 us
    ("linear_add", 1, 2048, 5120): Gemv(4, 1024, 4),  # 6.3 us
    ("norm_linear", 2, 5120, 2048): Gemv(2, 1024, 4),  # 8.6 us
    ("linear_add", 2, 2048, 4096): Gemv(2, 1024, 4),  # 6.5 us
    ("norm_linear", 2, 9216, 2048): Gemv(4, 1024, 4),  # 12.7 us
    ("norm_linear", 2, 8192, 2048): Gemv(4, 1024, 4),  # 12.0 us
    ("norm_linear", 2, 4096, 2048): Gemv(4, 1024, 4),  # 6.9 us
    ("norm_linear", 2, 5120, 2880): Gemv(4, 1024, 4),  # 10.7 us
    ("linear_add", 2, 2880, 4096): Gemv(4, 1024, 4),  # 8.4 us
    ("linear_add", 2, 2048, 5120): Gemv(2, 1024, 4),  # 7.9 us
    ("norm_linear", 8, 5120, 2048): Wide(1, 1, True, 0, 0, 20),  # 7.0 us
    ("linear_add", 8, 2048, 4096): Wide(1, 3, True, 0, 0, 20),  # 6.6 us
    ("norm_linear", 8, 9216, 2048): Wide(1, 2, True, 0, 0, 20, 128, 3),  # 10.7 us
    ("norm_linear", 8, 8192, 2048): Wide(1, 2, True, 0, 0, 20, 128, 2),  # 9.6 us
    ("norm_linear", 8, 4096, 2048): Wide(2, 3, True, 0, 0, 20),  # 6.5 us
    ("norm_linear", 8, 5120, 2880): Wide(1, 2, True, 0, 0, 20, 128, 2),  # 9.2 us
    ("linear_add", 8, 2880, 4096): Wide(1, 4, True, 0, 0, 20, 128, 2),  # 7.1 us
    ("linear_add", 8, 2048, 5120): Wide(1, 3, True, 0, 0, 20),  # 7.1 us
    ("norm_linear", 64, 5120, 2048): Wide(1, 1, True, 0, 0, 20),  # 8.5 us
    ("linear_add", 64, 2048, 4096): Wide(1, 3, True, 0, 0, 20),  # 7.2 us
    ("norm_linear", 64, 9216, 2048): Wide(1, 1, True, 0, 0, 20, 128, 2),  # 12.0 us
    ("norm_linear", 64, 8192, 2048): Wide(1, 1, True, 0, 0, 20),  # 11.0 us
    ("norm_linear", 64, 4096, 2048): Wide(1, 3, True, 0, 0, 20, 128, 2),  # 7.7 us
    ("norm_linear", 64, 5120, 2880): Wide(1, 1, True, 0, 0, 20),  # 10.6 us
    ("linear_add", 64, 2880, 4096): Wide(1, 2, True, 0, 0, 20),  # 8.5 us
    ("linear_add", 64, 2048, 5120): Wide(1, 3, True, 0, 0, 20),  # 8.0 us
    ("norm_linear", 1, 151936, 2048): Gemv(8, 1024, 4),  # 135.8 us
    ("norm_linear", 1, 248320, 2048): Gemv(4, 512, 2),  # 220.1 us
    ("norm_linear", 1, 201088, 2880): Gemv(8, 1024, 4),  # 250.7 us
    ("norm_linear", 8, 151936, 2048): Skinny(128, 128, 1, 8, 3),  # 144.3 us
    ("norm_linear", 8, 248320, 2048): Skinny(128, 128, 1, 8, 3),  # 233.0 us
    ("norm_linear", 8, 201088, 2880): Skinny(128, 128, 1, 8, 3),  # 266.3 us
    ("norm_linear", 64, 151936, 2048): Skinny(64, 64, 1, 4, 6, False),  # 156.0 us
    ("norm_linear", 64, 248320, 2048): Skinny(64, 64, 1, 4, 4, False),  # 251.4 us
    ("norm_linear", 64, 201088, 2880): Skinny(64, 64, 1, 4, 4, False),  # 285.3 us
}
