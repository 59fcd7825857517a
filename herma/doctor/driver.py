"""Checks the NVIDIA driver: loaded, of one version, new enough for torch, and present after the
next boot.

Owns which kernel boots next, and which libraries are preloaded into every process. Must not load
the driver or torch.
"""

import re
from collections.abc import Iterator
from typing import Final

from herma.doctor.finding import Finding
from herma.doctor.host import Host
from herma.doctor.python import torch_cuda
from workers.starts import MachineOrigin, read_libraries

CHECK: Final = "driver"

_VERSION: Final = re.compile(r"\d+(?:\.\d+)+")
_CUDA: Final = re.compile(r"CUDA Version:\s*(\d+\.\d+)")
_DIGEST_LETTERS: Final = 12


def check_driver(host: Host) -> Iterator[Finding]:
    """Check the running driver, then the driver of the kernel that boots next."""
    yield from _check_loaded(host)
    yield from _check_next_boot(host)


def check_preloaded(host: Host) -> Iterator[Finding]:
    """Report preloaded libraries: vGPU layers are installed this way, and may be replaced
    unnoticed.
    """
    origin = MachineOrigin(host.root, host.packages, host.packages)
    for name, library in read_libraries(origin, host.environ).items():
        if not library.sha256:
            yield Finding(
                "error",
                "preload",
                f"{name} is preloaded and does not exist",
                "each program prints an error of the loader; a GPU limit that it sets is lost",
                "remove it from /etc/ld.so.preload and LD_PRELOAD, or install it again",
            )
            continue
        yield Finding(
            "note",
            "preload",
            f"{name} is preloaded: {library.num_bytes:,} bytes, "
            f"sha256 {library.sha256[:_DIGEST_LETTERS]}",
            "it stands between programs and the driver; a running process keeps the old copy",
            "herma diff compares it with that of the last good start",
        )


def _check_loaded(host: Host) -> Iterator[Finding]:
    if not host.has_gpu:
        return
    if not host.exists("/proc/driver/nvidia/version"):
        yield Finding(
            "error",
            CHECK,
            "an NVIDIA card is on the bus, but its driver is not loaded",
            "no engine can use the card",
            "modprobe nvidia; if that fails, install the driver for this kernel: uname -r",
        )
        return
    answer = host.ask("nvidia-smi")
    if answer is None:
        yield Finding(
            "warning",
            CHECK,
            "nvidia-smi does not exist or does not answer",
            "Herma reads the use of GPU memory with it, and cannot wait for memory to drain",
            "install the driver's utilities; a hanging nvidia-smi needs a reset of the card",
        )
    elif "version mismatch" in answer.text:
        yield Finding(
            "error",
            CHECK,
            "the driver's module and its libraries have different versions",
            "each CUDA program fails: the libraries were upgraded while the old module runs",
            "reboot, or unload and load the module: rmmod nvidia_uvm nvidia; modprobe nvidia",
        )
    else:
        yield from _check_cuda(host, answer.text)


def _check_cuda(host: Host, text: str) -> Iterator[Finding]:
    """Check the driver's major version against the CUDA version that torch was built for."""
    offered, needed = _CUDA.search(text), torch_cuda(host)
    if offered is None or needed is None:
        return
    if int(needed.partition(".")[0]) > int(offered[1].partition(".")[0]):
        yield Finding(
            "error",
            CHECK,
            f"torch is built for CUDA {needed}, the driver offers {offered[1]}",
            "no engine starts on the card",
            f"install a driver for CUDA {needed}, or a torch that is built for {offered[1]}",
        )


def _check_next_boot(host: Host) -> Iterator[Finding]:
    running = host.text("/proc/sys/kernel/osrelease").strip()
    upcoming = next_kernel(host)
    if upcoming is None or upcoming == running or not _has_module(host, running):
        return
    if not _has_module(host, upcoming):
        yield Finding(
            "error",
            CHECK,
            f"the next boot starts kernel {upcoming}, which has no nvidia module",
            f"after a reboot no card works; the running kernel {running} has the module",
            f"install the driver for {upcoming} (dkms autoinstall -k {upcoming}), or pin the boot "
            f"entry of {running}",
        )


def next_kernel(host: Host) -> str | None:
    """The kernel of the next boot: the entry that GRUB saved or is set to, else the highest
    version.
    """
    kernels = [name.name.removeprefix("vmlinuz-") for name in host.names("/boot", "vmlinuz-*")]
    if not kernels:
        return None
    saved = re.search(r"^saved_entry=(.+)$", host.text("/boot/grub/grubenv"), re.MULTILINE)
    chosen = re.search(r'^GRUB_DEFAULT="?([^"\n]+)', host.text("/etc/default/grub"), re.MULTILINE)
    entry = chosen[1] if chosen else "0"
    if entry == "saved" and saved is not None:
        entry = saved[1]
    named = [kernel for kernel in kernels if kernel in entry]
    return max(named or kernels, key=_order)


def _order(kernel: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", kernel)]


def _has_module(host: Host, kernel: str) -> bool:
    return any(host.names(f"/lib/modules/{kernel}", "**/nvidia.ko*"))
