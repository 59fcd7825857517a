"""The text of systemd units: one for the gateway, one for each worker or rank.

Owns the settings and systemd's quoting. Must not write files.
"""

import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from config import Config, WorkerConfig
from herma.child_processes import GRACE_S

GATEWAY_UNIT: Final = "herma-gateway.service"
_SLACK_S: Final = 10.0
_WATCHDOG_S: Final = 60
"""A loop answers within milliseconds; a host that swaps may need seconds."""
_PLAIN: Final = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.:-]")

_UNIT: Final = """[Unit]
Description={description}
Wants=network-online.target
After={after}
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
{who}WorkingDirectory={folder}
{environment}EnvironmentFile=-{env_file}
ExecStart={command}
ExecReload={reload} --pid $MAINPID
Restart=on-failure
RestartSec=2
# A mistake in the configuration, which a restart does not mend. An engine that dies again and again
# is not systemd's matter: its supervisor stays, and gives up by itself.
RestartPreventExitStatus=2
TimeoutStopSec={stop_s:.0f}
WatchdogSec={watchdog_s}
KillMode=mixed
LimitNOFILE=65536

[Install]
WantedBy={target}
"""


@dataclass(frozen=True, slots=True)
class UnitOptions:
    """`python` runs Herma with the file `config` (None: the built-in set-up). `user` is the user of
    system units; None makes units of the user's own manager. `state` is XDG_STATE_HOME, if it is
    set.
    """

    python: str
    config: Path | None
    user: str | None
    folder: Path
    state: str | None = None

    @property
    def env_file(self) -> Path:
        """The file of secrets, beside the configuration."""
        if self.config is None:
            return self.folder / "herma.env"
        return self.config.with_suffix(".env")


def unit_files(config: Config, options: UnitOptions, names: Sequence[str] = ()) -> dict[str, str]:
    """The units by file name: for the gateway and all workers, or only for the workers of
    `names`.
    """
    units: dict[str, str] = {}
    if not names:
        stop_s = config.gateway.drain_s + 2 * GRACE_S + _SLACK_S
        units[GATEWAY_UNIT] = _unit(options, "Herma gateway", ["gateway"], [], stop_s)
    for worker in config.workers:
        if not names or worker.name in names:
            words = ["worker", "--name", worker.name]
            after = [GATEWAY_UNIT] if not names else []
            what = f"Herma worker {worker.name}{_rank(worker)}"
            stop_s = worker.drain_s + GRACE_S + _SLACK_S
            units[worker_unit(worker.name)] = _unit(options, what, words, after, stop_s)
    return units


def _rank(worker: WorkerConfig) -> str:
    return f" (rank {worker.rank} of {worker.group})" if worker.group is not None else ""


def worker_unit(name: str) -> str:
    """The file name of a worker's unit. A name with other characters gets a hash, so that units
    stay distinct.
    """
    plain = _NOT_IN_NAMES.sub("-", name)
    if plain != name:
        plain += f"-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
    return f"herma-worker-{plain}.service"


def _unit(
    options: UnitOptions, what: str, words: list[str], after: list[str], stop_s: float
) -> str:
    argv = [options.python, "-P", "-m", "herma", *words]
    if options.config is not None:
        argv += ["--config", str(options.config)]
    environ = {"XDG_STATE_HOME": options.state} if options.state else {}
    who = ""
    if options.user is not None:
        # One folder for the sockets of all units, which `herma worker status` reads.
        environ["HERMA_RUNTIME_DIR"] = "/run/herma"
        who = f"User={options.user}\nRuntimeDirectory=herma\nRuntimeDirectoryMode=0700\n"
        who += "RuntimeDirectoryPreserve=yes\n"
    lines = (f"Environment={quoted(f'{key}={value}')}\n" for key, value in environ.items())
    return _UNIT.format(
        description=what.replace("%", "%%"),
        after=" ".join(["network-online.target", *after]),
        who=who,
        folder=str(options.folder).replace("%", "%%"),
        environment="".join(lines),
        env_file=str(options.env_file).replace("%", "%%"),
        command=" ".join(quoted(word, is_command=True) for word in argv),
        reload=" ".join(quoted(word, is_command=True) for word in [*argv[:4], "reload"]),
        stop_s=stop_s,
        watchdog_s=_WATCHDOG_S,
        target="default.target" if options.user is None else "multi-user.target",
    )


def file_in(unit: str) -> str:
    """The configuration file of a unit's command, as it stands there; "" without one."""
    return unit.partition(" --config ")[2].partition("\n")[0]


def quoted(word: str, *, is_command: bool = False) -> str:
    """A word quoted for systemd: quotes, `%` of specifiers, `$` of variables in commands."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if is_command:
        text = text.replace("$", "$$")
    return text if _PLAIN.fullmatch(text) else f'"{text}"'


def needed_variables(config: Config) -> list[str]:
    """The variables that the configuration reads secrets from."""
    names = [provider.api_key_env for provider in config.providers.values()]
    names += [worker.api_key_env for worker in config.workers]
    return sorted({name for name in names if name is not None})


def enabling(named: Sequence[str], *, is_user: bool) -> list[str]:
    """The commands for the operator to run after the units are written; `named` are their names,
    or their paths where they lie in a folder of the operator's.
    """
    units = shlex.join(named)
    if is_user:
        return [
            "systemctl --user daemon-reload",
            f"systemctl --user enable --now {units}",
            "loginctl enable-linger   # start at boot, not at login",
        ]
    return ["systemctl daemon-reload", f"systemctl enable --now {units}"]


def removing(folder: Path, names: Sequence[str], *, is_user: bool) -> str:
    """The command for an operator who does not want the units any more."""
    manager = "systemctl --user" if is_user else "systemctl"
    files = shlex.join([str(folder / name) for name in names])
    units = " ".join(names)
    return f"{manager} disable --now {units}; rm {files}; {manager} daemon-reload   # to undo it"
