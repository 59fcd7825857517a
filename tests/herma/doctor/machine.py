"""A planted machine: a tree of files and the answers of its programs."""

from collections.abc import Sequence
from pathlib import Path

from config import LedgerConfig
from herma.doctor import Host, QueryOutput
from herma.processes import GatewayProcess, Supervisor

SITE = Path("/opt/venv/lib/python3.12/site-packages")
NVIDIA = "/proc/driver/nvidia/version"
TOTAL = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
APPS = "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader,nounits"


class Machine:
    """Files lie under `root`; `answers` are by command line."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.environ: dict[str, str] = {}
        self.answers: dict[str, QueryOutput] = {}
        self.gateways: list[GatewayProcess] = []
        self.workers: list[Supervisor] = []
        self.shared_limits: str | None = None
        self.free_bytes = 2**40
        self.unix_time = 1_800_000_000.0

    def write(self, name: str, content: str | bytes = "", mode: int = 0o644) -> Path:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return path

    def link(self, name: str, target: str) -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def answer(self, command: str, text: str, status: int = 0) -> None:
        self.answers[command] = QueryOutput(status, text)

    def with_gpu(self, total: str = "24463") -> None:
        """A card whose driver runs under kernel 6.8.0-50, which is also the next one."""
        self.write(NVIDIA, "NVRM version: 580.126.09")
        self.write("/proc/sys/kernel/osrelease", "6.8.0-50-generic\n")
        self.write("/boot/vmlinuz-6.8.0-50-generic")
        self.write("/lib/modules/6.8.0-50-generic/updates/dkms/nvidia.ko.zst")
        self.answer("nvidia-smi", "Driver Version: 580.126.09   CUDA Version: 13.0")
        self.answer(TOTAL, f"{total}\n")

    @property
    def host(self) -> Host:
        return Host(
            self.root,
            self.environ,
            self._query,
            SITE,
            self._gateways,
            self._limits,
            lambda: self.workers,
            lambda _: self.free_bytes,
            lambda: self.unix_time,
        )

    def _limits(self, _ledger: LedgerConfig) -> str | None:
        return self.shared_limits

    def _gateways(self) -> list[GatewayProcess]:
        return self.gateways

    def _query(self, argv: Sequence[str]) -> QueryOutput | None:
        return self.answers.get(" ".join(argv))
