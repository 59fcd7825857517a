"""Kernels compiled before they are needed: the compiler process, the dry run, the cache."""
