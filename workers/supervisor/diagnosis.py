"""The cause of an engine's death, the remedy, and the text of the fault.

Owns the reading of the evidence (the supervisor's verdict, the engine's last message, its exit
code, its last log lines, the kernel's count of out-of-memory kills) and the wording and bounds of a
fault; `death_signs.toml` beside it has the words and exit codes that are known. Must not know
processes or clocks.
"""

import re
import signal
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from housekeeping.signals import signal_name
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


class _Sign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Patterns of error texts that identify a cause."""

    kind: FaultKind
    remedy: str
    words: tuple[str, ...]


class _Meaning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The meaning of an exit code."""

    kind: FaultKind
    cause: str
    remedy: str = "see its last log lines"


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    signs: tuple[_Sign, ...]
    codes: dict[str, _Meaning]
    signals: dict[str, _Meaning]


def _read() -> _Known:
    text = Path(__file__).with_name("death_signs.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Known)


# Read at the start: the installation may have been replaced by the time an engine dies.
_KNOWN: Final = _read()
_SIGNS: Final = tuple(
    (re.compile("|".join(sign.words), re.IGNORECASE), sign) for sign in _KNOWN.signs
)


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
    found = _meaning(code)
    kind, remedy = found.kind, found.remedy
    if code not in (126, 127) and (sign := _find(error)) is not None:
        kind, remedy = sign.kind, sign.remedy
    return Diagnosis(kind, f"exit code {code}: {found.cause} ({error})", remedy)


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
    found, killer = _meaning(code), signal_name(code - _SIGNAL_BASE)
    name = f"exit code {code} ({killer})" if killer else f"exit code {code}"
    # Old lines must not explain a kill from outside; 126 and 127 explain themselves.
    if found.kind in ("error", "crash", "left", "unknown"):
        for line in reversed(lines):
            if (sign := _find(line)) is not None:
                return Diagnosis(sign.kind, f"{name}: {line.strip()}", sign.remedy)
    return Diagnosis(found.kind, f"{name}: {found.cause}", found.remedy)


def _meaning(code: int) -> _Meaning:
    killer = signal_name(code - _SIGNAL_BASE)
    known = _KNOWN.codes.get(str(code)) or _KNOWN.signals.get(killer)
    if known is not None:
        return known
    if killer:
        return _Meaning("killed", "ended by that signal")
    return _Meaning("unknown", "no known meaning")


def _find(text: str) -> _Sign | None:
    return next((sign for pattern, sign in _SIGNS if pattern.search(text)), None)


KEPT_LINES: Final = 300
"""Lines that are read for the cause: vLLM writes it before two tracebacks of some 60 lines each."""

LAST_LINES: Final = 50
"""Lines that are shown and sent."""

MAX_LINE_CHARS: Final = 500
MAX_CAUSE_CHARS: Final = 1000

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
"""Colours and cursor movements (ECMA-48): useless in a log, and harmful on a terminal."""


def fault_cause(
    diagnosis: Diagnosis,
    *,
    worker: str,
    failed_starts: int,
    stops: bool,
    next_s: float = 0.0,
    is_endless: bool = False,
) -> str:
    """The text of a fault: the cause, the remedy, and whether another try follows in `next_s`
    seconds; `is_endless`: one does each time.
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
        wait = f", the next in {next_s:.0f} s" if next_s >= 1.0 else ""
        most = "" if is_endless else f" of {MAX_FAILED_STARTS}"
        text += f" (failed start {failed_starts}{most}{wait})"
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
