"""The cause of an engine's death, the remedy, and the text of the fault.

Owns the reading of the evidence (the supervisor's verdict, the engine's last message, its exit
code, its last log lines, the kernel's count of out-of-memory kills) and the wording and bounds of a
fault. Must not know processes or clocks.
"""

import re
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protocol.messages import FaultKind
from workers.supervisor.restart_policy import MAX_FAILED_STARTS

_SIGNAL_BASE: Final = 128
_KILLED: Final = _SIGNAL_BASE + signal.SIGKILL

DOWNLOAD_PHASE: Final = "download"
LOADING_PHASES: Final = frozenset(
    (DOWNLOAD_PHASE, "weights", "memory", "warm-up", "compile", "health probe")
)
"""From the first of these phases on, a failure may be the machine's. Before it, only the
configuration was read, and another try would fail in the same way.
"""


@dataclass(frozen=True, slots=True)
class DeathEvidence:
    """The evidence about a dead engine. `killed_for` is the supervisor's reason for killing it,
    `reported` the cause that the engine reported, `is_config` whether it reported a configuration
    error, `phase` the phase of its start. `exit_code` is as in a shell, None while unknown.
    `spawn_error` is the reason why no process could be spawned. `oom_kills` counts the kernel's
    out-of-memory kills in our control group during the engine's life. `port_holder` is the process
    that listens on the engine's port.
    """

    killed_for: str | None = None
    reported: str | None = None
    is_config: bool = False
    phase: str = "start"
    exit_code: int | None = None
    spawn_error: str = ""
    last_lines: tuple[str, ...] = ()
    oom_kills: int = 0
    port_holder: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The cause and the remedy ("" if there is none), one line each. `is_permanent`: another try
    would fail in the same way.
    """

    kind: FaultKind
    cause: str
    remedy: str = ""
    is_permanent: bool = False


@dataclass(frozen=True, slots=True)
class _Sign:
    """A pattern of error texts that identifies a cause."""

    pattern: "re.Pattern[str]"
    kind: FaultKind
    remedy: str


def _sign(pattern: str, kind: FaultKind, remedy: str) -> _Sign:
    return _Sign(re.compile(pattern, re.IGNORECASE), kind, remedy)


# The most specific pattern is first: a CUDA error often causes a Python one.
_SIGNS: Final = (
    # HAMi's libvgpu (`get_limit_from_env`): 0 means no limit on one path, no memory on another.
    _sign(
        r"invalid device memory limit|Limit overflow: CUDA_DEVICE_MEMORY_LIMIT|Total VRAM: 0 MiB",
        "configuration",
        "CUDA_DEVICE_MEMORY_LIMIT_N is not a limit that the vGPU library understands: 0m is no way "
        "to say `none`; give it a size as 23000m, or remove the variable",
    ),
    _sign(
        r"\bIllegal device id\b",
        "driver",
        "the preloaded vGPU library (libvgpu.so) does not suit the driver: compare the copy that "
        "this container maps with the node's, and start the container anew after an update",
    ),
    _sign(
        r"Cannot re-initialize CUDA in forked subprocess",
        "configuration",
        "an engine's ranks must be spawned: remove VLLM_WORKER_MULTIPROC_METHOD=fork",
    ),
    _sign(
        r"unrecognized arguments|error: argument -|invalid choice: |expected one argument"
        r"|error while handling argument|error: invalid argument",
        "configuration",
        "correct launch.argv: each flag and each value is a word of its own, JSON is one word",
    ),
    _sign(
        r"JSONDecodeError|Expecting property name enclosed in double quotes|cannot be converted to"
        r" <function loads|is not valid JSON",
        "configuration",
        "a JSON flag has lost its quotes on its way: give it as one word of launch.argv, through "
        "no shell, ssh or `docker exec ... sh -c`",
    ),
    _sign(
        r"invalid magic characters|HeaderTooLarge|InvalidHeader|header too large",
        "configuration",
        "a model file has another format than the engine reads (GGUF and safetensors are not "
        "exchangeable, a drafter has its own), or was cut short",
    ),
    _sign(
        r"DistNetworkError|DistStoreError|TCPStore.*(timed out|failed)|ncclSystemError"
        r"|ncclRemoteError|ncclInvalidUsage|ncclInternalError|unhandled (system|cuda) error"
        r"|NCCL WARN .*(Bootstrap|Connect|connect to|no socket interface|Call to)"
        r"|Bootstrap : no socket interface found|NCCL error|Gloo connectFullMesh failed"
        r"|ncclCommInitRank",
        "ranks",
        "the ranks of the engine did not find each other: check on every host NCCL_SOCKET_IFNAME, "
        "GLOO_SOCKET_IFNAME and NCCL_IB_HCA, equal NCCL and driver versions, and that /dev/shm and "
        "the GPUs' memory are free of earlier ranks; NCCL_DEBUG=INFO says more",
    ),
    _sign(
        r"No available memory for the cache blocks|larger than the available KV cache memory"
        r"|larger than the maximum number of tokens that can be stored in KV cache"
        r"|is less than desired GPU memory utilization|Not enough memory\. Please try to increase"
        r"|unable to allocate CUDA\d|failed to allocate CUDA\d|cudaMalloc failed",
        "gpu_memory",
        "end what else holds the GPU's memory (nvidia-smi); else give the engine more of it "
        "(--gpu-memory-utilization, --mem-fraction-static) or less to hold (a shorter window, "
        "fewer sequences)",
    ),
    _sign(
        r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
        r"|CUDA error: out of memory|\[CUDA\]: out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED"
        r"|does not fit into the memory of cuda",
        "gpu_memory",
        "end what else holds the GPU's memory (nvidia-smi), or lower kv_tokens or token_budget (of "
        "another engine: its own flags)",
    ),
    _sign(
        r"uncorrectable ECC|ECC error",
        "gpu_error",
        "the GPU's memory is faulty: see nvidia-smi -q -d ECC; reset or replace the GPU",
    ),
    _sign(
        r"driver version is insufficient|driver/library version mismatch|forward compatibility"
        r"|no CUDA-capable device|CUDA driver initialization failed|libcuda\.so"
        r"|torch finds \d+ CUDA devices|Found no NVIDIA driver|Torch not compiled with CUDA",
        "driver",
        "check that nvidia-smi runs here and that its driver suits the installed torch",
    ),
    _sign(
        r"illegal memory access|illegal instruction was encountered|device-side assert"
        r"|unspecified launch failure|misaligned address|CUBLAS_STATUS|CUDNN_STATUS"
        r"|CUDA error|has fallen off the bus|Xid",
        "gpu_error",
        "if it comes again look for Xid lines in dmesg; a kernel or the GPU is at fault",
    ),
    _sign(
        r"No space left on device|disk quota exceeded|Errno 28",
        "disk_full",
        "free some space (df -h, also for /dev/shm and the temporary directory)",
    ),
    _sign(
        r"address already in use|Errno 98|EADDRINUSE|port \d+ .*(taken|in use)"
        r"|couldn't bind HTTP server socket",
        "port_taken",
        "end the program that holds the port (ss -ltnp) or choose another",
    ),
    _sign(
        r"\bMemoryError\b|cannot allocate memory|std::bad_alloc|DefaultCPUAllocator"
        r"|does not fit into the memory of (cpu|the host)|out of memory of the host",
        "memory",
        "the host's memory is too small for it: end other programs or take a smaller model",
    ),
    _sign(
        r"ModuleNotFoundError|ImportError|cannot open shared object file",
        "file_not_found",
        "the installation is incomplete: install herma anew",
    ),
    _sign(
        r"No such file or directory|FileNotFoundError|does not exist|is no directory",
        "file_not_found",
        "put the file back or correct the path",
    ),
    _sign(
        r"Permission denied|PermissionError",
        "not_executable",
        "give this user the right to read and execute it",
    ),
)

_BY_CODE: Final[dict[int, tuple[FaultKind, str, str]]] = {
    0: ("left", "it left without being asked", "see its last log lines"),
    1: ("error", "it ended with an error", "see its last log lines"),
    2: ("error", "its command line was not understood", "see its last log lines"),
    126: (
        "not_executable",
        "file not executable: the interpreter or a script lacks permission",
        "give it the right to be executed",
    ),
    127: (
        "file_not_found",
        "file not found: the interpreter or a script is gone",
        "install it again or correct the path",
    ),
}

_BY_SIGNAL: Final[dict[int, tuple[FaultKind, str, str]]] = {
    signal.SIGKILL: (
        "killed",
        "killed, and not by its supervisor",
        "another process or the host's out-of-memory killer ended it: see dmesg",
    ),
    signal.SIGSEGV: (
        "crash",
        "a crash in native code (segmentation fault)",
        "its last log lines may name the library",
    ),
    signal.SIGABRT: (
        "crash",
        "a failed assertion in native code",
        "its last log lines may name it",
    ),
    signal.SIGBUS: (
        "crash",
        "a bus error",
        "often a model file cut short, or a full /dev/shm",
    ),
    signal.SIGILL: (
        "crash",
        "an instruction that this CPU does not have",
        "install a build for this CPU",
    ),
    signal.SIGTERM: ("killed", "asked to end by SIGTERM", ""),
    signal.SIGINT: ("killed", "interrupted from the keyboard", ""),
}


def shell_code(returncode: int) -> int:
    """The exit code as in a shell: 128 + the signal for a killed process."""
    return returncode if returncode >= 0 else _SIGNAL_BASE - returncode


def diagnose(ending: DeathEvidence) -> Diagnosis:
    """The diagnosis: from the supervisor's verdict, else the engine's report, else its exit code
    and log.
    """
    found = _diagnose(ending)
    if found.kind == "port_taken" and ending.port_holder:
        return replace(found, cause=f"{found.cause}; {ending.port_holder} listens there")
    return found


def _diagnose(ending: DeathEvidence) -> Diagnosis:
    # A report is older than a verdict: a killed engine's frames are dropped. An engine that has
    # said why it ends may take longer to do so than the supervisor waits.
    if ending.reported is not None:
        return _of_report(ending, ending.reported)
    if ending.killed_for is not None:
        return _of_verdict(ending.killed_for)
    if ending.exit_code is None:
        return Diagnosis("unknown", "the engine is gone; how is not known yet")
    if ending.exit_code == _KILLED and ending.oom_kills:
        return Diagnosis(
            "memory",
            f"exit code {_KILLED} (SIGKILL): killed by the kernel, out of memory",
            "raise the memory limit of its container or service, or take a smaller model",
        )
    if ending.spawn_error:
        return _of_spawn(ending.exit_code, ending.spawn_error)
    return _of_exit(ending.exit_code, ending.last_lines)


def _of_spawn(code: int, error: str) -> Diagnosis:
    kind, what, remedy = _meaning(code)
    if code not in (126, 127) and (sign := _find(error)) is not None:
        kind, remedy = sign.kind, sign.remedy
    return Diagnosis(kind, f"exit code {code}: {what} ({error})", remedy)


def _of_verdict(verdict: str) -> Diagnosis:
    """The diagnosis of the supervisor's own verdict; each verdict has one form."""
    if verdict.startswith("hung"):
        return Diagnosis("hung", verdict)
    if verdict.startswith("no progress"):
        return Diagnosis("no_progress", verdict, "raise stall_s if the step is only slow")
    if verdict.startswith("no answers"):
        return Diagnosis("no_answers", verdict, "its last log lines may say why requests fail")
    if verdict.startswith("the health probe"):
        return Diagnosis("bad_answer", verdict)
    if (sign := _find(verdict)) is not None:
        return Diagnosis(sign.kind, verdict, sign.remedy)
    is_of_group = verdict.startswith(("rank ", "the group "))
    return Diagnosis("ranks" if is_of_group else "error", verdict)


def _of_report(ending: DeathEvidence, reported: str) -> Diagnosis:
    sign = _find(reported)
    # A GPU or a port may be back at the next try; a wrong name stays wrong.
    is_fixed = sign is None or sign.kind in ("file_not_found", "configuration")
    if ending.is_config and is_fixed and ending.phase not in LOADING_PHASES:
        return Diagnosis("configuration", reported, "", is_permanent=True)
    if sign is None:
        return Diagnosis("configuration" if ending.is_config else "error", reported)
    # A `ConfigError` names the remedy itself.
    return Diagnosis(sign.kind, reported, "" if ending.is_config else sign.remedy)


def _of_exit(code: int, lines: tuple[str, ...]) -> Diagnosis:
    kind, what, remedy = _meaning(code)
    name = f"exit code {code}{_signal_name(code)}"
    # Old lines must not explain a kill from outside; 126 and 127 explain themselves.
    if kind in ("error", "crash", "left", "unknown"):
        for line in reversed(lines):
            if (sign := _find(line)) is not None:
                return Diagnosis(sign.kind, f"{name}: {line.strip()}", sign.remedy)
    return Diagnosis(kind, f"{name}: {what}", remedy)


def _meaning(code: int) -> tuple[FaultKind, str, str]:
    if code in _BY_CODE:
        return _BY_CODE[code]
    if code - _SIGNAL_BASE in _BY_SIGNAL:
        return _BY_SIGNAL[code - _SIGNAL_BASE]
    if _signal_name(code):
        return "killed", "ended by that signal", "see its last log lines"
    return "unknown", "no known meaning", "see its last log lines"


def _signal_name(code: int) -> str:
    try:
        return f" ({signal.Signals(code - _SIGNAL_BASE).name})"
    except ValueError:
        return ""


def _find(text: str) -> _Sign | None:
    return next((sign for sign in _SIGNS if sign.pattern.search(text)), None)


KEPT_LINES: Final = 300
"""Lines that are read for the cause: vLLM writes it before two tracebacks of some 60 lines each."""

LAST_LINES: Final = 50
"""Lines that are shown and sent."""

MAX_LINE_CHARS: Final = 500
MAX_CAUSE_CHARS: Final = 1000

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
"""Colours and cursor movements (ECMA-48): useless in a log, and harmful on a terminal."""


def fault_cause(
    diagnosis: Diagnosis, *, worker: str, failed_starts: int, stops: bool, next_s: float = 0.0
) -> str:
    """The text of a fault: the cause, the remedy, and whether another try follows in `next_s`
    seconds.
    """
    text = one_line(diagnosis.cause)
    if diagnosis.remedy:
        text += f"; {diagnosis.remedy}"
    if stops:
        starts = "1 start" if failed_starts == 1 else f"{failed_starts} starts in a row"
        text += (
            f"; stopped after {starts} that never got ready: "
            f"correct the cause, then `herma worker restart {worker}`"
        )
    elif failed_starts:
        wait = f"; the next in {next_s:.0f} s" if next_s >= 1.0 else ""
        text += f" (failed start {failed_starts} of {MAX_FAILED_STARTS}{wait})"
    return text


def one_line(text: str) -> str:
    """`text` as one bounded line without control characters."""
    return clean_text(" ".join(text.split()))[:MAX_CAUSE_CHARS]


def clean_text(text: str) -> str:
    """`text` without colours; other control characters become escapes (`\\x1b`)."""
    shown = _ANSI.sub("", text)
    return "".join(
        each if each.isprintable() or each == "\t" else each.encode("unicode_escape").decode()
        for each in shown
    )


def clean_line(line: bytes) -> str:
    """A log line to keep and show; of a progress bar only the last state."""
    text = line.decode(errors="replace").rstrip()
    return clean_text(text.rpartition("\r")[2][: 4 * MAX_LINE_CHARS])[:MAX_LINE_CHARS]


def last_log(lines: Iterable[str]) -> tuple[str, ...]:
    """The last lines of a log, cut to what a message may contain."""
    return tuple(line[:MAX_LINE_CHARS] for line in lines)[-LAST_LINES:]


_ROOT: Final = Path("/")


def count_oom_kills(root: Path = _ROOT) -> int:
    """Out-of-memory kills in the innermost memory control group of this process; 0 if unknown."""
    with suppress(OSError):
        membership = (root / "proc/self/cgroup").read_text(encoding="utf-8")
        return max(map(_kills, _event_files(root, membership)), default=0)
    return 0


def _event_files(root: Path, membership: str) -> list[Path]:
    found: list[Path] = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        group = root / "sys/fs/cgroup" / controllers / path.lstrip("/")
        if controllers == "":
            found.append(group / "memory.events")
        elif controllers == "memory":
            found.append(group / "memory.oom_control")
            # Inside a container the host's control group is mounted at the top.
            found.append(root / "sys/fs/cgroup/memory/memory.oom_control")
    return found


def _kills(path: Path) -> int:
    with suppress(OSError):
        for line in path.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return 0
