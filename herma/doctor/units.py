"""Checks this host's systemd units: the programs that they start exist, and their last starts
succeeded.

Owns the parsing of unit files and of commands inside containers. Only the operator's units count
(`/etc/systemd/system`); the distribution's are not judged.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from herma.doctor.finding import Finding
from herma.doctor.host import Host

CHECK: Final = "units"
UNITS: Final = "/etc/systemd/system"

_EXITS: Final = {
    126: "the program is not executable",
    127: "the program was not found",
    137: "it was killed (SIGKILL), often for lack of memory",
    203: "systemd could not execute the program",
    217: "its user does not exist",
    226: "a directory or mount that it needs is missing",
}
_CONTAINERS: Final = ("docker", "podman", "nerdctl")
_SCRIPTS: Final = (".sh", ".py", ".bash")


def check_units(host: Host) -> Iterator[Finding]:
    """Check every service of the operator: its programs, then the end of its last start."""
    for unit in host.names(UNITS, "*.service"):
        if not host.path(unit).is_file():
            continue  # a masked unit is a link to /dev/null
        for words in _commands(host.text(unit)):
            yield from _check_command(host, unit, words)
        yield from _check_end(host, unit)


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each Exec line of a unit, with continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        key, _, value = line.strip().partition("=")
        if key not in ("ExecStart", "ExecStartPre", "ExecStartPost", "ExecStop"):
            continue
        try:
            words = shlex.split(value.lstrip("-@:+!"))
        except ValueError:
            continue  # systemd itself reports a line whose quotes do not close
        if words:
            yield words


def _check_command(host: Host, unit: Path, words: list[str]) -> Iterator[Finding]:
    program = words[0]
    if Path(program).name in _CONTAINERS:
        yield from _check_container(host, unit, words)
        return
    scripts = [word for word in words[1:] if word.startswith("/") and word.endswith(_SCRIPTS)]
    for name in [program, *scripts]:
        if not name.startswith("/"):
            continue
        if not host.exists(name):
            yield _missing(unit, name, f"correct ExecStart in {unit} or install {name}")
        elif name == program and not host.path(name).stat().st_mode & 0o111:
            yield Finding(
                "error",
                CHECK,
                f"{unit} starts {name}, which is not executable",
                "the unit ends with status 203 or 126 at each start",
                f"chmod +x {name}",
            )


def _missing(unit: Path, name: str, remedy: str) -> Finding:
    why = "the unit ends with status 127 or 203 at each start, also after the next boot"
    return Finding("error", CHECK, f"{unit} starts {name}, which does not exist", why, remedy)


def _check_container(host: Host, unit: Path, words: list[str]) -> Iterator[Finding]:
    """Check `docker exec [OPTIONS] NAME PROGRAM ...`: the program must be in the image, because the
    writable layer is lost with the container.
    """
    if words[1:2] != ["exec"]:
        return
    rest = [word for word in words[2:] if not word.startswith("-")]
    paths = [word for word in rest[1:] if word.startswith("/")]
    if not paths:
        return
    tool, container = Path(words[0]).name, rest[0]
    changed = host.ask(tool, "diff", container)
    if changed is None or changed.status != 0:
        yield Finding(
            "warning",
            CHECK,
            f"{unit} runs {paths[0]} in the container {container}, which cannot be examined",
            "the unit fails while the container does not exist",
            f"{tool} ps -a --filter name={container}",
        )
        return
    added = {line.partition(" ")[2] for line in changed.text.splitlines() if line[:1] in "AC"}
    found = host.ask(tool, "exec", container, "test", "-e", paths[0])
    if found is not None and found.status == 1:
        remedy = f"put {paths[0]} into the image of {container} or correct {unit}"
        yield _missing(unit, f"{paths[0]} in {container}", remedy)
    elif paths[0] in added:
        yield Finding(
            "warning",
            CHECK,
            f"{unit} runs {paths[0]}, which is only in the writable layer of {container}",
            "it is gone when the container is made anew, and then every start ends with 127",
            f"put it into the image, or mount it: -v {paths[0]}:{paths[0]}:ro",
        )


def _check_end(host: Host, unit: Path) -> Iterator[Finding]:
    wanted = ("ActiveState", "ExecMainStatus", "NRestarts", "Result")
    output = host.ask("systemctl", "show", unit.name, *(f"-p{name}" for name in wanted))
    if output is None or output.status != 0:
        return
    facts = dict(line.split("=", 1) for line in output.text.splitlines() if "=" in line)
    status, restarts = facts.get("ExecMainStatus", "0"), facts.get("NRestarts", "0")
    if not status.isdigit() or int(status) == 0 or facts.get("Result") == "success":
        return
    meaning = _EXITS.get(int(status), f"see its log: journalctl -u {unit.name} -n 50")
    yield Finding(
        "error" if facts.get("ActiveState") != "active" else "warning",
        CHECK,
        f"the last start of {unit.name} ended with status {status} ({restarts} restarts)",
        meaning,
        f"journalctl -u {unit.name} -n 50; then systemctl restart {unit.name}",
    )
