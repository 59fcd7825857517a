"""Kernels in CUDA C++, for what Triton cannot say: from source to a launch, by NVIDIA's bindings.

`source` and the program `nvrtc` need no card; `driver` is imported where one is about to be used.
"""
