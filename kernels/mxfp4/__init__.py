"""Weights of 4-bit floats that share a power of two: MXFP4 of the Open Compute Project, 2023.

Owns the layout, as published checkpoints of gpt-oss have it, and its definition.
"""

from kernels.mxfp4.weight import GROUP, Mxfp4Weight, dequantise
