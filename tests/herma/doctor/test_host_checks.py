"""Driver, memory, GPU, clock, files, Python: each fault is planted and its remedy is read."""

import hashlib

import pytest
from msgspec.structs import replace

from config import CacheConfig, Config, WorkerConfig
from herma.doctor import Finding, examine
from herma.processes import GatewayProcess, Supervisor
from protocol.control_messages import GatewayStatus, LastFault, WorkerStatus
from tests.herma.doctor.machine import APPS, NVIDIA, SITE, Machine

GIB = 2**20  # KiB, as /proc/meminfo counts


def only(machine: Machine) -> Finding:
    (one,) = examine(machine.host, Config())
    return one


def test_a_healthy_host_with_a_card(machine: Machine) -> None:
    machine.with_gpu()
    machine.answer(APPS, "")
    machine.write(f"{SITE}/torch/version.py", "cuda: Optional[str] = '13.0'\n")
    machine.write("/proc/self/limits", "Max open files            65536   524288   files\n")
    machine.answer("timedatectl show -p NTPSynchronized --value", "yes\n")
    assert examine(machine.host, Config()) == []


def test_a_driver_that_is_not_loaded(machine: Machine) -> None:
    machine.write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    machine.write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")
    one = only(machine)
    assert "its driver is not loaded" in one.what
    assert one.remedy.startswith("modprobe nvidia")


def test_no_nvidia_smi(machine: Machine) -> None:
    machine.with_gpu()
    machine.answers.clear()
    assert "nvidia-smi does not exist or does not answer" in only(machine).what


def test_libraries_of_another_version(machine: Machine) -> None:
    machine.with_gpu()
    text = "Failed to initialize NVML: Driver/library version mismatch"
    machine.answer("nvidia-smi", text, status=18)
    assert "reboot" in only(machine).remedy


def test_a_driver_that_is_too_old_for_torch(machine: Machine) -> None:
    machine.with_gpu()
    machine.answer("nvidia-smi", "CUDA Version: 12.4")
    machine.write(f"{SITE}/torch/version.py", "cuda: Optional[str] = '13.0'\n")
    one = only(machine)
    assert one.what == "torch is built for CUDA 13.0, the driver offers 12.4"


@pytest.mark.parametrize(
    ("grub", "grubenv"),
    [
        ("GRUB_DEFAULT=0\n", ""),
        ("GRUB_DEFAULT=saved\n", "saved_entry=Ubuntu, with Linux 6.17.0-23-generic\n"),
    ],
)
def test_the_next_kernel_has_no_module(machine: Machine, grub: str, grubenv: str) -> None:
    machine.with_gpu()
    machine.write("/boot/vmlinuz-6.17.0-23-generic")
    machine.write("/etc/default/grub", grub)
    machine.write("/boot/grub/grubenv", grubenv)
    one = only(machine)
    assert one.level == "error"
    assert "kernel 6.17.0-23-generic, which has no nvidia module" in one.what
    assert "pin the boot entry of 6.8.0-50-generic" in one.remedy


def test_a_pinned_kernel_is_the_next_one(machine: Machine) -> None:
    machine.with_gpu()
    machine.write("/boot/vmlinuz-6.17.0-23-generic")
    machine.write("/etc/default/grub", 'GRUB_DEFAULT="1>Ubuntu, with Linux 6.8.0-50-generic"\n')
    assert examine(machine.host, Config()) == []


def test_a_preloaded_library(machine: Machine) -> None:
    machine.write("/usr/local/vgpu/libvgpu.so", b"shim")
    machine.write("/etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so\n")
    machine.environ["LD_PRELOAD"] = "/gone.so"
    shim, gone = examine(machine.host, Config())
    assert shim.level == "note"
    assert f"4 bytes, sha256 {hashlib.sha256(b'shim').hexdigest()[:12]}" in shim.what
    assert gone.level == "error"
    assert gone.what == "/gone.so is preloaded and does not exist"


@pytest.mark.parametrize(
    ("value", "what", "remedy"),
    [
        ("0m", "0 bytes to the driver and no limit to the runtime", "unset"),
        ("lots", "is no size", "23000m"),
        ("24000m", "leaves 463 MiB of the card", "=23439m"),
        ("32g", "is 8305 MiB over the card", "=23439m"),
    ],
)
def test_limits_of_gpu_sharing(machine: Machine, value: str, what: str, remedy: str) -> None:
    machine.with_gpu()
    machine.environ["CUDA_DEVICE_MEMORY_LIMIT_0"] = value
    one = only(machine)
    assert what in one.what
    assert remedy in one.remedy


def test_a_limit_with_a_margin_is_no_finding(machine: Machine) -> None:
    machine.with_gpu()
    machine.environ["CUDA_DEVICE_MEMORY_LIMIT_0"] = "23000m"
    assert examine(machine.host, Config()) == []


def test_page_cache_on_unified_memory(machine: Machine) -> None:
    machine.with_gpu("[N/A]")
    meminfo = "MemTotal: {} kB\nMemFree: {} kB\nCached: {} kB\n"
    machine.write("/proc/meminfo", meminfo.format(128 * GIB, 11 * GIB, 110 * GIB))
    one = only(machine)
    assert one.what == "page cache holds 110 of 128 GiB of unified memory"
    assert "drop_caches" in one.remedy
    assert one.fix is not None
    machine.write("/proc/meminfo", meminfo.format(128 * GIB, 116 * GIB, 4 * GIB))
    assert examine(machine.host, Config()) == []


def test_page_cache_is_no_matter_for_a_card_with_memory(machine: Machine) -> None:
    machine.with_gpu()
    machine.write("/proc/meminfo", f"MemTotal: {128 * GIB} kB\nCached: {110 * GIB} kB\n")
    assert examine(machine.host, Config()) == []


def test_segments_that_no_process_maps(machine: Machine) -> None:
    machine.write("/dev/shm/psm_used", b"u" * 10)
    machine.write("/dev/shm/psm_stale", b"s" * 10)
    machine.write("/dev/shm/of_another_program")
    machine.write("/proc/77/maps", "7f00-7f01 rw-s 00000000 00:19 5 /dev/shm/psm_used\n")
    one = only(machine)
    assert one.what.startswith("1 segments")
    assert one.fix is not None
    assert one.fix.remove == (machine.root / "dev/shm/psm_stale",)


def test_shared_memory_of_a_container(machine: Machine) -> None:
    machine.write("/proc/self/mounts", "shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n")
    assert "--shm-size" in only(machine).remedy


def test_another_process_on_the_gpu(machine: Machine) -> None:
    machine.with_gpu()
    machine.answer(APPS, "77, /usr/bin/python3, 15012\n90, python3, 800\n[N/A], -, -\n")
    machine.write("/proc/77/cgroup", "0::/system.slice/docker-0123456789abcdef.scope\n")
    machine.write("/proc/90/status", "PPid:\t80\n")
    machine.write("/proc/80/cmdline", "herma worker gpu0\0")
    one = only(machine)
    assert "process 77 (/usr/bin/python3) in container 0123456789ab holds 15012 MiB" in one.what
    assert one.remedy.startswith("docker stop 0123456789ab")


def test_a_clock_that_is_not_synchronised(machine: Machine) -> None:
    machine.answer("timedatectl show -p NTPSynchronized --value", "no\n")
    assert only(machine).remedy == "timedatectl set-ntp true"


def test_few_open_files(machine: Machine) -> None:
    machine.write("/proc/self/limits", "Max open files            1024   524288   files\n")
    assert "1024 files" in only(machine).what


def test_a_state_directory_that_cannot_be_written(machine: Machine) -> None:
    """`herma up` would end after its workers have begun to start."""
    machine.environ["XDG_STATE_HOME"] = "/mnt/state"
    assert not examine(machine.host, Config())
    machine.write("/mnt/state", "a file")
    one = only(machine)
    assert (one.level, one.what) == (
        "error",
        "/mnt/state/herma cannot be written: /mnt/state is a file",
    )


def test_a_state_directory_on_a_full_disk(machine: Machine) -> None:
    machine.environ["HOME"] = "/home/me"
    machine.free_bytes = 3 * 2**20
    one = only(machine)
    assert one.what == "the disk of /home/me/.local/state/herma has 3 MiB free"


def test_a_package_with_our_name(machine: Machine) -> None:
    machine.write(f"{SITE}/kernels-0.9.0.dist-info/METADATA")
    assert only(machine).remedy.startswith("pip uninstall kernels")


def test_torch_without_cuda(machine: Machine) -> None:
    machine.with_gpu()
    machine.write(f"{SITE}/torch/version.py", "cuda: Optional[str] = None\n")
    assert "a build for CPUs" in only(machine).what


def test_the_driver_file_is_enough(machine: Machine) -> None:
    machine.write(NVIDIA, "NVRM")
    assert machine.host.has_gpu


def test_gateways_that_hang_and_that_replaced_others(machine: Machine) -> None:
    """One that answers and was there from the start is no finding."""
    path = machine.root / "herma-1-7-1-gateway"
    well = GatewayStatus(7, "http://127.0.0.1:80", "1", "0/2")
    machine.gateways.append(GatewayProcess(path, 7, well))
    assert examine(machine.host, Config()) == []
    machine.gateways.append(GatewayProcess(path, 8, None))
    hung = only(machine)
    assert hung.level == "error"
    assert "the gateway process 8 does not answer" in hung.what
    assert "kill -USR2 8" in hung.remedy
    why = "it hung: its event loop did not turn for 10 s"
    after = GatewayStatus(9, "http://127.0.0.1:80", "1", "1/2", replaced=2, why=why)
    machine.gateways[1:] = [GatewayProcess(path, 9, after)]
    replaced = only(machine)
    assert replaced.level == "warning"
    assert replaced.what.endswith(f"was replaced 2 times; the last one ended so: {why}")
    stuck = replace(well, troubles=("cannot write the ledger /l: locked",))
    machine.gateways[1:] = [GatewayProcess(path, 9, stuck)]
    found = only(machine)
    assert found.level == "error"
    assert found.what == "the gateway process 9: cannot write the ledger /l: locked"
    assert "requests to providers" in found.why
    lost = "the shared limits: the Redis server cannot be reached (ConnectionError: refused)"
    machine.gateways[1:] = [GatewayProcess(path, 9, replace(well, troubles=(lost,)))]
    found = only(machine)
    assert (found.level, "Redis" in found.remedy) == ("error", True)
    assert "under a limit" in found.why
    unkept = "usage is not recorded: cannot open the ledger /l: Read-only file system"
    machine.gateways[1:] = [GatewayProcess(path, 9, replace(well, troubles=(unkept,)))]
    found = only(machine)
    assert (found.level, "restart" in found.remedy) == ("warning", True)
    stuck = replace(well, troubles=("responses are not stored: /r is taken",))
    machine.gateways[1:] = [GatewayProcess(path, 9, stuck)]
    found = only(machine)
    assert found.level == "warning"
    assert "is not found" in found.why


def test_workers_that_gave_up_and_that_are_not_ready(machine: Machine) -> None:
    """One that is ready and has a gateway is no finding."""
    path = machine.root / "herma-1-7-1-worker"
    well = WorkerStatus("w", 7, "m", "m", "ready", 1, 0, gateways=(1, 1))
    machine.workers.append(Supervisor(path, 7, well))
    assert examine(machine.host, Config()) == []
    fault = LastFault(1, "config", "the engine does not say its window", 2, 1.0)
    machine.workers[:] = [Supervisor(path, 7, replace(well, state="stopped", fault=fault))]
    gone = only(machine)
    assert gone.level == "error"
    assert "the worker w has given up: the engine does not say its window" in gone.what
    assert "herma worker restart w" in gone.remedy
    machine.workers[:] = [Supervisor(path, 7, replace(well, state="starting", phase="weights"))]
    assert (only(machine).level, "not ready: starting" in only(machine).what) == ("warning", True)
    machine.workers[:] = [Supervisor(path, 7, replace(well, gateways=(0, 2)))]
    assert "reaches none of its 2 gateways" in only(machine).what
    machine.workers[:] = [Supervisor(path, 7, None)]
    assert (only(machine).level, "does not answer" in only(machine).what) == ("error", True)


@pytest.mark.parametrize(
    ("limit", "membership"),
    [("memory.max", "0::/\n"), ("memory/memory.limit_in_bytes", "9:memory:/\n")],
)
def test_host_caches_that_the_host_has_no_memory_for(
    machine: Machine, limit: str, membership: str
) -> None:
    """Host caches of all workers together that the host has no memory for, under the container's
    limit, in both versions of control groups.
    """
    machine.write("/proc/self/cgroup", membership)
    machine.write("/proc/meminfo", f"MemTotal: {128 * 2**20} kB\n")
    table = ("m", "m", (), 1)
    workers = tuple(
        WorkerConfig(name, *table, cache=CacheConfig(size))
        for name, size in (("a", "40GiB"), ("b", "80GiB"), ("c", "auto"))
    )
    about = [one for one in examine(machine.host, Config(workers=workers)) if "cache" in one.what]
    assert about == []
    machine.write(f"/sys/fs/cgroup/{limit}", f"{2**63 - 4096}\n")
    about = [one for one in examine(machine.host, Config(workers=workers)) if "cache" in one.what]
    assert about == []
    machine.write(f"/sys/fs/cgroup/{limit}", f"{100 * 2**30}\n")
    (one,) = [one for one in examine(machine.host, Config(workers=workers)) if "cache" in one.what]
    assert one.what == "cache.host of `a`, `b` takes 120.00 GiB, and the host has 100.00 GiB"
