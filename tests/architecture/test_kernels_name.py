"""Hugging Face's optional `kernels` package would clash with ours."""

import importlib.metadata
from pathlib import Path

import pytest

import kernels


def test_the_other_kernels_package_is_absent() -> None:
    """The `kernels` that is imported is Herma's, and no distribution of that name is installed."""
    assert Path(kernels.__file__ or "").is_relative_to(Path(__file__).parents[2])
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("kernels")
