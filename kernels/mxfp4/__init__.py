"""Weights of 4-bit floats that share a power of two: MXFP4 of the Open Compute Project, 2023.

Owns the layout, as published checkpoints of gpt-oss have it and as kernels in CUDA C++ read it, and
its definition.
"""

from kernels.mxfp4.placing import check_placed, place
from kernels.mxfp4.reference import dequantise
from kernels.mxfp4.weight import GROUP, Mxfp4Weight
