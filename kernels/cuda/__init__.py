"""Kernels in CUDA C++, for what Triton cannot say: from source to a launch, by NVIDIA's bindings.

Nothing here is imported before such a kernel is wanted on a card that runs it.
"""
