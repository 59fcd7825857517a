"""Checks the Python environment: a torch that can use the card, and package names that clash with
ours.

Owns the reading of installed packages without importing them.
"""

import re
from collections.abc import Iterator
from typing import Final

from herma.doctor.finding import Finding
from herma.doctor.host import Host

CHECK: Final = "python"


def torch_cuda(host: Host) -> str | None:
    """The CUDA version that the installed torch is built for; None for a build without CUDA, or
    without torch.
    """
    text = host.text(host.packages / "torch/version.py")
    found = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", text, re.MULTILINE)
    return None if found is None else found[1]


def check_python(host: Host) -> Iterator[Finding]:
    """Check the packages of the environment that runs this command."""
    if any(host.names(host.packages, "kernels-[0-9]*.dist-info")):
        yield Finding(
            "error",
            CHECK,
            "the package `kernels` of Hugging Face is installed in this environment",
            "Herma has a package of the same name; which of the two is imported is chance",
            "pip uninstall kernels, or give Herma an environment of its own",
        )
    has_torch = host.exists(host.packages / "torch/version.py")
    if has_torch and host.has_gpu and torch_cuda(host) is None:
        yield Finding(
            "error",
            CHECK,
            "torch is a build for CPUs, and this host has an NVIDIA card",
            "engines run on the CPU; a rebuild of an image often takes the wrong wheel",
            "install the CUDA build of torch in this environment",
        )
