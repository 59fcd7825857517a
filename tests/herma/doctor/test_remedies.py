"""Every finding that the doctor can make: its fault is planted, and its remedy is read.

A walk over the source finds each place where one is made; one that no case here plants fails it.
"""

import ast
import importlib
import pkgutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

import herma.doctor
from config import Config, parse_config
from herma.doctor import Finding, examine
from herma.doctor.ranks import PCIE
from herma.processes import GatewayProcess, Supervisor
from protocol.control_messages import GatewayStatus, WorkerStatus
from tests.fakes.certificates import certificate_for
from tests.herma.doctor.machine import APPS, NVIDIA, SITE, Machine
from tests.herma.doctor.test_config_checks import ENGINE, HEAD, LISTEN, plant_model
from tests.herma.doctor.test_units import EXEC, UNIT
from workers.starts import Library, StartRecord, StartRecords, record_path, save_starts

GIB_KB = 2**20
SHOW = "systemctl show engine.service -pActiveState -pExecMainStatus -pNRestarts -pResult"
SHARED = '[ledger]\nshared = "redis://10.0.0.5/0"\nshared_password_env = "P"\n'
HOME = {"HOME": "/root"}


TLS = '[gateway]\ntls_certificate_file = "/tls/c.pem"\ntls_key_file = "/tls/k.pem"\n'


class Case(NamedTuple):
    """`remedy` is what one of the findings must advise once `plant` has done its work."""

    remedy: str
    plant: Callable[[Machine], object]
    config: str = ""


def _certificate(days: int) -> Callable[[Machine], None]:
    """One that is valid for two days from now, seen so many days later."""

    def plant(machine: Machine) -> None:
        with TemporaryDirectory() as folder:
            path, _ = certificate_for("localhost", Path(folder))
            machine.write("/tls/c.pem", path.read_bytes())
        machine.unix_time = time.time() + days * 86_400

    return plant


def _old_cuda(machine: Machine) -> None:
    machine.with_gpu()
    machine.answer("nvidia-smi", "CUDA Version: 12.4")
    machine.write(f"{SITE}/torch/version.py", "cuda: Optional[str] = '13.0'\n")


def _cpu_torch(machine: Machine) -> None:
    machine.with_gpu()
    machine.write(f"{SITE}/torch/version.py", "cuda: Optional[str] = None\n")


def _unloaded(machine: Machine) -> None:
    machine.write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    machine.write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")


def _mismatch(machine: Machine) -> None:
    machine.with_gpu()
    machine.answer("nvidia-smi", "Driver/library version mismatch", status=18)


def _next_kernel(machine: Machine) -> None:
    machine.with_gpu()
    machine.write("/boot/vmlinuz-6.17.0-23-generic")
    machine.write("/etc/default/grub", "GRUB_DEFAULT=0\n")


def _gateway(status: GatewayStatus | None) -> Callable[[Machine], None]:
    def plant(machine: Machine) -> None:
        machine.gateways.append(GatewayProcess(machine.root / "socket", 7, status))

    return plant


def _worker(**changes: Any) -> Callable[[Machine], None]:
    """A worker that is ready and has a gateway, but for `changes`; none answers for `gone`."""

    def plant(machine: Machine) -> None:
        status = WorkerStatus("w", 7, "m", "m", "ready", 1, 0, gateways=(1, 1))
        shown = None if changes.get("gone") else replace(status, **changes)
        machine.workers.append(Supervisor(machine.root / "socket", 7, shown))

    return plant


class _Unreadable(list[GatewayProcess]):
    def __iter__(self) -> Iterator[GatewayProcess]:
        raise PermissionError(13, "Permission denied", "/proc/secret")


def _no_rights(machine: Machine) -> None:
    machine.gateways = _Unreadable()


def _proxy(machine: Machine) -> None:
    machine.write("/proc/7/comm", "haproxy\n")


def _silent_server(machine: Machine) -> None:
    machine.shared_limits = "the shared limits cannot be reached"


def _limit(value: str) -> Callable[[Machine], None]:
    def plant(machine: Machine) -> None:
        machine.with_gpu()
        machine.environ["CUDA_DEVICE_MEMORY_LIMIT_0"] = value

    return plant


def _page_cache(machine: Machine) -> None:
    machine.with_gpu("[N/A]")
    cached = f"MemTotal: {128 * GIB_KB} kB\nMemFree: {11 * GIB_KB} kB\nCached: {110 * GIB_KB} kB\n"
    machine.write("/proc/meminfo", cached)


def _small_container(machine: Machine) -> None:
    plant_model(machine)
    machine.write("/proc/self/cgroup", "0::/\n")
    machine.write("/sys/fs/cgroup/memory.max", "50\n")


def _foreign_process(machine: Machine) -> None:
    machine.with_gpu()
    machine.answer(APPS, "77, /usr/bin/python3, 15012\n")


def _state_in_a_file(machine: Machine) -> None:
    machine.environ["XDG_STATE_HOME"] = "/mnt/state"
    machine.write("/mnt/state")


def _full_disk(machine: Machine) -> None:
    machine.environ["HOME"] = "/home/me"
    machine.free_bytes = 0


def _taken_port(machine: Machine) -> None:
    row = f"   0: 0100007F:{8080:04X} 00000000:0000 0A 0:0 00:0 0 0 0 4711 1\n"
    machine.write("/proc/net/tcp", LISTEN + row)


def _gguf(machine: Machine) -> None:
    plant_model(machine)
    (machine.root / "models/m/model.safetensors").rename(machine.root / "models/m/m.gguf")


def _unit(content: str, diff: str = "", status: int = 0, *, test: int = 0) -> Any:
    def plant(machine: Machine) -> None:
        machine.write(UNIT, content)
        machine.answer("docker diff vllm", diff, status)
        machine.answer("docker exec vllm test -e /opt/start.sh", "", test)

    return plant


def _failing_unit(machine: Machine) -> None:
    machine.write("/opt/start.sh", mode=0o755)
    machine.write(UNIT, "[Service]\nExecStart=/opt/start.sh\n")
    ended = "ActiveState=failed\nExecMainStatus=127\nNRestarts=1204\nResult=exit-code\n"
    machine.answer(SHOW, ended)


def _plain_unit(machine: Machine) -> None:
    machine.write("/opt/start.sh")
    machine.write(UNIT, "[Service]\nExecStart=/opt/start.sh\n")


def _drifted(machine: Machine) -> None:
    """A start whose library and settings are gone since."""
    machine.environ |= HOME
    good = StartRecord(
        1.0,
        libraries={"/vgpu.so": Library(676, "ab" * 32)},
        config={"max_context": 131_072},
        arguments=("--name", "w"),
    )
    path = machine.host.path(record_path("w", HOME))
    save_starts(path, StartRecords().with_good(good))


def _file_is_gone(machine: Machine) -> None:
    """A start from a file that is not there any more."""
    machine.environ |= HOME
    good = StartRecord(
        1.0, arguments=("--name", "w", "--config", str(machine.host.path("/w.toml")))
    )
    save_starts(machine.host.path(record_path("w", HOME)), StartRecords().with_good(good))


def _broken_record(machine: Machine) -> None:
    machine.environ |= HOME
    machine.write(str(record_path("w", HOME)), "{")


def _preloaded(machine: Machine) -> None:
    machine.write("/usr/local/libvgpu.so", b"shim")
    machine.write("/etc/ld.so.preload", "/usr/local/libvgpu.so\n")


P2P = "GPU0 GPU1\nGPU0 X {0}\nGPU1 {0} X\n\nLegend:\n  X = Self\n"
LINKS = """
\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \t{0}\t0-23\t0
GPU1\t{0}\t X \t24-47\t1
"""


def _pair(
    status: str = "OK", link: str = "PHB", bus: str = "16, 16, 4, 4", num: int = 2
) -> Callable[[Machine], None]:
    """`num` cards in a host; `bus` is what nvidia-smi says of the last one's place."""

    def plant(machine: Machine) -> None:
        rows = ["0, 16, 16, 4, 4", f"1, {bus}"][:num]
        machine.answer(" ".join(PCIE), "\n".join(rows))
        machine.answer("nvidia-smi topo -p2p r", P2P.format(status))
        machine.answer("nvidia-smi topo -m", LINKS.format(link))

    return plant


def _huge_pages(setting: str) -> Callable[[Machine], None]:
    def plant(machine: Machine) -> None:
        plant_model(machine)
        machine.write("/sys/kernel/mm/transparent_hugepage/enabled", f"{setting}\n")

    return plant


def _no_p2p(machine: Machine) -> None:
    _pair()(machine)
    machine.environ["NCCL_P2P_DISABLE"] = "1"


NATIVE = HEAD
TWO_CARDS = HEAD + "tensor_parallel = 2\n"
CACHING = HEAD + 'cache = { host = "64GiB" }\n'
LAUNCHED = HEAD + ENGINE
RESIDENCY = 'residency = "on-demand"\n'
ON_DEMAND = LAUNCHED.replace("[[workers]]", RESIDENCY + "[[workers]]") + 'device = "cuda:0"\n'
ON_DEMAND = ON_DEMAND.format('"serve"')
CASES = {
    "proxy on the host": Case("X-Forwarded-For", _proxy),
    "no rights": Case("as a user that may read it", _no_rights),
    "unit whose script is gone": Case(
        f"correct ExecStart in {UNIT} or install /opt/gone.sh",
        _unit("[Service]\nExecStart=/opt/gone.sh\n"),
    ),
    "unit whose script is no program": Case("chmod +x /opt/start.sh", _plain_unit),
    "unit of a container that is gone": Case("docker ps -a --filter name=vllm", _unit(EXEC, "", 1)),
    "unit of a container that lacks the script": Case(
        "put /opt/start.sh into the image of vllm", _unit(EXEC, "C /tmp\n", test=1)
    ),
    "unit of a writable layer": Case(
        "-v /opt/start.sh:/opt/start.sh:ro", _unit(EXEC, "C /opt\nA /opt/start.sh\n")
    ),
    "unit that fails": Case("systemctl restart engine.service", _failing_unit),
    "driver not loaded": Case("modprobe nvidia", _unloaded),
    "no nvidia-smi": Case(
        "install the driver's utilities", lambda machine: machine.write(NVIDIA, "NVRM")
    ),
    "driver mismatch": Case("rmmod nvidia_uvm nvidia; modprobe nvidia", _mismatch),
    "old driver": Case("install a driver for CUDA 13.0, or a torch", _old_cuda),
    "next kernel": Case("pin the boot entry of 6.8.0-50-generic", _next_kernel),
    "preloaded library": Case("herma diff compares it", _preloaded),
    "preloaded library that is gone": Case(
        "remove it from /etc/ld.so.preload and LD_PRELOAD",
        lambda machine: machine.environ.update(LD_PRELOAD="/gone.so"),
    ),
    "limit that is no size": Case("or unset CUDA_DEVICE_MEMORY_LIMIT_0", _limit("lots")),
    "limit of nothing": Case("unset CUDA_DEVICE_MEMORY_LIMIT_0", _limit("0m")),
    "limit without margin": Case("LIMIT_0=23439m", _limit("24000m")),
    "too few cards": Case("nvidia-smi -L", _pair(num=1), TWO_CARDS),
    "cards that cannot read": Case("behind one PCIe switch", _pair("CNS"), TWO_CARDS),
    "cards of two sockets": Case("cards of one socket", _pair(link="SYS"), TWO_CARDS),
    "few lanes": Case("a slot with all lanes", _pair(bus="4, 16, 4, 4"), TWO_CARDS),
    "old slot": Case("a riser that limits it", _pair(bus="16, 16, 3, 4"), TWO_CARDS),
    "no direct way": Case("unset NCCL_P2P_DISABLE", _no_p2p, TWO_CARDS),
    "page cache": Case("echo 1 > /proc/sys/vm/drop_caches", _page_cache),
    "small container": Case(
        "raise the memory limit of the control group cgroup above", _small_container, NATIVE
    ),
    "large host cache": Case(
        "lower cache.host",
        lambda machine: machine.write("/proc/meminfo", f"MemTotal: {8 * GIB_KB} kB\n"),
        CACHING,
    ),
    "small pages": Case(
        "echo always > /sys/kernel/mm/transparent_hugepage/enabled",
        _huge_pages("always [madvise] never"),
        ON_DEMAND,
    ),
    "stale segments": Case(
        "herma doctor --fix", lambda machine: machine.write("/dev/shm/psm_stale", b"s")
    ),
    "small shared memory": Case(
        "--shm-size 8g or --ipc=host",
        lambda machine: machine.write(
            "/proc/self/mounts", "shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n"
        ),
    ),
    "foreign process": Case("kill 77, if it should not run", _foreign_process),
    "taken port": Case("choose another port in [gateway] port", _taken_port),
    "clock": Case(
        "timedatectl set-ntp true",
        lambda machine: machine.answer("timedatectl show -p NTPSynchronized --value", "no\n"),
    ),
    "open files": Case(
        "LimitNOFILE=65536",
        lambda machine: machine.write("/proc/self/limits", "Max open files  1024  4096  files\n"),
    ),
    "state": Case("name another in XDG_STATE_HOME", _state_in_a_file),
    "full disk": Case("free space there", _full_disk),
    "package kernels": Case(
        "pip uninstall kernels",
        lambda machine: machine.write(f"{SITE}/kernels-0.9.0.dist-info/METADATA"),
    ),
    "torch for CPUs": Case("install the CUDA build of torch", _cpu_torch),
    "model of another format": Case('engine = "llama-cpp"', _gguf, NATIVE),
    "slow flag": Case(
        "remove --enforce-eager from launch.argv",
        plant_model,
        LAUNCHED.format('"--enforce-eager"'),
    ),
    "few tokens": Case(
        "set --max-num-batched-tokens to 8192 or more",
        plant_model,
        LAUNCHED.format('"--max-num-batched-tokens", "2048"'),
    ),
    "lost quotes": Case(
        "write it as one word of launch.argv",
        plant_model,
        LAUNCHED.format('"--speculative-config", "{{method: mtp}}"'.replace("{{", "{")),
    ),
    "slow variable": Case(
        "launch.env of worker `w`",
        plant_model,
        LAUNCHED.format('"serve"').replace("] }", '], env = { OMP_NUM_THREADS = "1" } }'),
    ),
    "drifted settings": Case("herma diff w; set them back", _drifted, NATIVE),
    "file of a start that is gone": Case("put the file back or correct it", _file_is_gone),
    "changed library": Case("put the earlier file back", _drifted, NATIVE),
    "broken record": Case("correct or remove the file", _broken_record, NATIVE),
    "hung gateway": Case("kill -9 7 ends it", _gateway(None)),
    "replaced gateway": Case(
        "look in the log", _gateway(GatewayStatus(7, "http://127.0.0.1:80", "1", "0/2", replaced=1))
    ),
    "stuck ledger": Case(
        "end the program that holds the file",
        _gateway(GatewayStatus(7, "http://127.0.0.1:80", "1", "0/2", troubles=("stuck",))),
    ),
    "expired certificate": Case("renew it", _certificate(3), TLS),
    "certificate that ends soon": Case("renew it", _certificate(1), TLS),
    "no certificate": Case("put a PEM chain there", lambda _: None, TLS),
    "clear password": Case("rediss://...", _silent_server, SHARED),
    "silent server": Case("start the server", _silent_server, SHARED),
    "worker that does not answer": Case("kill -CONT 7", _worker(gone=True)),
    "worker that has given up": Case("herma worker restart w", _worker(state="stopped")),
    "worker that is not ready": Case("how far it is", _worker(state="waiting")),
    "worker without a gateway": Case("correct `gateways`", _worker(gateways=(0, 2))),
}

Site = tuple[str, int]


@cache
def _sites() -> frozenset[Site]:
    """File and first line of each call that makes a finding."""
    return frozenset(
        (path.name, node.lineno)
        for path in Path(herma.doctor.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id == Finding.__name__
    )


def _findings(case: Case, folder: Path) -> list[Finding]:
    machine = Machine(folder)
    case.plant(machine)
    config = parse_config(case.config, Path("herma.toml")) if case.config else Config()
    return examine(machine.host, config)


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_found_with_its_remedy(name: str, tmp_path: Path) -> None:
    """One line each, and what it costs."""
    case = CASES[name]
    found = _findings(case, tmp_path)
    (one,) = [one for one in found if case.remedy in one.remedy]
    assert one.what
    assert one.why
    assert "\n" not in one.what + one.why + one.remedy


@pytest.mark.parametrize(
    ("setting", "config"),
    [("[always] madvise never", "on demand"), ("always [madvise] never", "always resident")],
)
def test_small_pages_are_nothing_to_say_where_nothing_sleeps_in_them(
    tmp_path: Path, setting: str, config: str
) -> None:
    machine = Machine(tmp_path)
    _huge_pages(setting)(machine)
    text = ON_DEMAND if config == "on demand" else ON_DEMAND.replace(RESIDENCY, "")
    found = examine(machine.host, parse_config(text, Path("herma.toml")))
    assert not [one for one in found if "huge" in one.what]


def test_ranks_on_the_cpu_need_no_card(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    _pair("CNS", num=1)(machine)
    config = parse_config(TWO_CARDS + 'device = "cpu"\n', Path("herma.toml"))
    assert not [one for one in examine(machine.host, config) if one.check == "ranks"]


def test_each_finding_has_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that makes a finding has a case."""
    made: set[Site] = set()

    def noted(*values: Any, **fields: Any) -> Finding:
        frame = sys._getframe(1)
        path = Path(frame.f_code.co_filename)
        lines = [line for file, line in _sites() if file == path.name and line <= frame.f_lineno]
        made.add((path.name, max(lines)))
        return Finding(*values, **fields)

    for module in pkgutil.iter_modules(herma.doctor.__path__):
        one = importlib.import_module(f"herma.doctor.{module.name}")
        if module.name != "finding" and hasattr(one, "Finding"):
            monkeypatch.setattr(one, "Finding", noted)
    for name, case in CASES.items():
        _findings(case, tmp_path / name)
    assert len(_sites()) > 30
    assert made == _sites()
