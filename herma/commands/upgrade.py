"""`herma upgrade [NAME]` and `herma rollback [NAME]`: another version, and the way back.

Owns the translation of the command line, the facts of this host that the steps need, the signals
and the report.
"""

import argparse
import itertools
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from herma.processes import gateways, supervisors
from herma.upgrade import (
    InstallSource,
    Interrupted,
    MoveBounds,
    Mover,
    Smoke,
    UpgradePlan,
    UpgradeSteps,
    VersionRejected,
    adopt,
    carry_out,
    given_up,
    image_runner,
    install,
    load_plan,
    prune,
    resumed,
    rollback,
)
from housekeeping.state_file import held_alone
from protocol.control_messages import ModelCover, WorkerStatus
from protocol.errors import ConfigError
from workers.engine_extra import missing_packages
from workers.starts import StartRecord, config_file_of, load_starts, record_of, starts_dir
from workers.versions import HERMA, PLACEHOLDER, Installation, InstalledVersion, installation_of

EXIT_BACK: Final = 1
"""The exit status if the plan went back to the old version, or if a step failed."""
EXIT_INTERRUPTED: Final = 130
_TOKENIZER: Final = "tokenizer.json"


def run(arguments: argparse.Namespace) -> int:
    """Upgrade or roll back. Returns 0 if the requested version serves, else 1. Raises
    `ConfigError`.
    """
    installation = installation_of(arguments.installation, os.environ)
    if arguments.list:
        return _list(installation)
    with held_alone(installation.folder / "lock", f"an upgrade of {installation.name}"), _signals():
        try:
            if arguments.command == "rollback":
                return _Command(installation, arguments).roll_back()
            return _Command(installation, arguments).upgrade()
        except Interrupted:
            _say(f"interrupted: `herma rollback {installation.name}` finishes the way back")
            return EXIT_INTERRUPTED


class _Command:
    """One run of the command."""

    def __init__(self, installation: Installation, arguments: argparse.Namespace) -> None:
        self._installation = installation
        self._arguments = arguments
        bounds = MoveBounds(arguments.drain, arguments.bound, arguments.pause)
        cover = partial(_cover, arguments.gateway, arguments.key_env)
        self._mover = Mover(installation, bounds, _tokenizer_of, cover, _say)
        self._smoke = Smoke(_say, os.environ)
        self._steps = UpgradeSteps(installation, self._mover, self._check)

    def upgrade(self) -> int:
        """Install the version, prove it, try it on one worker, move the rest, make it current."""
        source = self._source()
        source.check()
        self._finish_other(resumed)
        names = () if self._arguments.stage else self._mover.names()
        old = self._adopted()
        version = install(self._installation, source, _say, self._arguments.python)
        if old is not None and version.id == old.id:
            _say(f"version {version.id} is current already")
            return 0
        if self._arguments.stage:
            self._check(self._plan(old, version, ()))
            _say(f"version {version.id} is installed and proved; nothing runs on it yet")
            return 0
        plan = self._plan(old, version, names)
        return self._report(carry_out(plan, self._steps, _say))

    def roll_back(self) -> int:
        """Go back to the version before, or out of an interrupted upgrade."""
        name = self._installation.name
        if (done := self._finish_other(lambda plan: given_up(plan, "herma rollback"))) is not None:
            return self._report(done)
        current, previous = self._installation.current(), self._installation.previous()
        if current is None or previous is None or current.id == previous.id:
            raise ConfigError(f"installation `{name}` has no earlier version on this host")
        _say(f"from version {current.id} back to {previous.id}")
        names = self._mover.names()
        plan = rollback(name, current.id, previous.id, names)
        return self._report(carry_out(plan, self._steps, _say))

    def _finish_other(self, begin: Callable[[UpgradePlan], UpgradePlan]) -> UpgradePlan | None:
        """Finish, or take back, an upgrade that an earlier command left unfinished."""
        plan = load_plan(self._installation.folder)
        if plan is None or plan.is_over:
            return None
        plan = begin(plan)
        way = "back to" if plan.is_going_back else "on from"
        _say(f"an upgrade to version {plan.new} was cut short: {way} version {plan.old}")
        return carry_out(plan, self._steps, _say)

    def _plan(
        self, old: InstalledVersion | None, new: InstalledVersion, names: Sequence[str]
    ) -> UpgradePlan:
        return UpgradePlan(
            installation=self._installation.name,
            old="" if old is None else old.id,
            new=new.id,
            workers=tuple(names),
            earlier=self._earlier(),
        )

    def _earlier(self) -> str:
        previous = self._installation.previous()
        return "" if previous is None else previous.id

    def _source(self) -> InstallSource:
        given = self._arguments
        runner = image_runner(self._launch_words()) if given.image is not None else ""
        shares = None
        if given.share_packages:
            current = self._adopted()
            if current is None or current.kind != "environment":
                raise ConfigError("--share-packages: there is no environment to share with")
            shares = self._installation.environment(current.id)
        return InstallSource(
            wheel=given.wheel,
            package=given.package,
            index=given.index,
            image=given.image,
            runner=runner,
            constraints=given.constraints,
            shares=shares,
            extra=self._extra(),
        )

    def _extra(self) -> str | None:
        """A new version of Herma has the engine's packages where the running one has them."""
        is_ours = self._installation.name == HERMA
        return "engine" if is_ours and not missing_packages() else None

    def _adopted(self) -> InstalledVersion | None:
        """The current version; the first time, the existing version is recorded as such."""
        if (current := self._installation.current()) is not None:
            return current
        if self._installation.name == HERMA:
            if not (Path(sys.prefix) / "bin" / "herma").exists():
                raise ConfigError(
                    f"Herma runs from a checkout, not from the environment {sys.prefix}: install "
                    "it there (pip install .), or there is nothing to come back to"
                )
            return adopt(self._installation, sys.prefix)
        bases = {status.base for status in self._statuses() if status.base}
        if len(bases) > 1:
            raise ConfigError(f"workers have {len(bases)} bases of it: {', '.join(sorted(bases))}")
        return adopt(self._installation, bases.pop()) if bases else None

    def _statuses(self) -> list[WorkerStatus]:
        """The workers of this host that run the installation, including ranks."""
        found = [each.status for each in supervisors() if each.status is not None]
        name = self._installation.name
        return [status for status in found if name in (HERMA, status.installation)]

    def _launch_words(self) -> list[str]:
        """The command line of an engine of the installation, from its latest start."""
        for status in self._statuses():
            launch = _latest_table(status).get("launch") or {}
            if argv := launch.get("argv"):
                return list(argv)
        return []

    def _check(self, plan: UpgradePlan) -> None:
        """Prove the new version. Raises `VersionRejected` or `ConfigError`."""
        version = self._installation.version(plan.new)
        if version is None:
            raise VersionRejected(f"version {plan.new} is gone; install it again")
        old = self._installation.version(plan.old) if plan.old else None
        environment = self._installation.environment(plan.new)
        before = None
        if old is not None and old.kind == "environment":
            before = self._installation.environment(old.id)
        place = version.reference or str(environment)
        if self._installation.name == HERMA:
            assert before is not None
            self._smoke.herma(environment, before, _config_files(self._statuses()))
        else:
            kinds = {str(_latest_table(status).get("engine", "")) for status in self._statuses()}
            for kind in sorted(kinds):
                if version.kind == "image":
                    before_image = "" if old is None else old.reference
                    self._smoke.image(version.reference, before_image, kind, self._launch_words())
                else:
                    self._smoke.environment(environment, before, kind, self._launch_words())
        if self._arguments.smoke is not None:
            words = shlex.split(self._arguments.smoke)
            self._smoke.command([word.replace(PLACEHOLDER, place) for word in words])
        _say(f"version {plan.new} has passed what can be proved without a worker")

    def _report(self, plan: UpgradePlan) -> int:
        for trouble in plan.troubles:
            _say(f"not mended: {trouble}")
        if plan.installation == HERMA:
            for gateway in gateways():
                _say(f"the gateway of process {gateway.pid} takes the version at its next start")
        if plan.phase == "done":
            kept = (plan.old, plan.new)
            for removed in prune(self._installation, kept):
                _say(f"version {removed} is removed")
            _say(f"version {plan.new} is current; `herma rollback {plan.installation}` goes back")
            return 0
        is_rollback = plan.reason == "herma rollback"
        _say(f"version {plan.old or '(none)'} is current")
        return 0 if is_rollback and not plan.troubles else EXIT_BACK


def _list(installation: Installation) -> int:
    current, previous = installation.current(), installation.previous()
    if current is None:
        _say(f"`{installation.name}` has not been upgraded on this host: it has no versions yet")
    for version in installation.versions():
        is_current = current is not None and current.id == version.id
        is_previous = previous is not None and previous.id == version.id
        mark = "current " * is_current + "previous" * is_previous
        _say(f"{version.id:<30} {mark:<9} {version.source}")
    return 0


def _cover(url: str | None, key_env: str | None) -> Iterable[ModelCover]:
    """What the gateways of this host, or the one at `url`, know of models. Raises `HermaError`."""
    if url is None:
        known = (one.status.models for one in gateways() if one.status is not None)
        return itertools.chain.from_iterable(known)
    from herma.top import GatewayPage, admin_key

    with closing(GatewayPage(url, admin_key(key_env, os.environ))) as page:
        state, _ = trio.run(page.state)
    rows = state.overview.models
    return [ModelCover(row.name, row.ready_workers, bool(row.providers)) for row in rows]


def _latest(status: WorkerStatus) -> StartRecord | None:
    """A worker's latest start; None if there is no record. Raises `ConfigError`."""
    path = record_of(starts_dir(os.environ), status.name, status.config or "")
    return None if path is None else load_starts(path).latest


def _latest_table(status: WorkerStatus) -> dict[str, Any]:
    """The configuration table of a worker's latest start; empty if there is no record."""
    record = _latest(status)
    return {} if record is None else record.config


def _config_files(statuses: Sequence[WorkerStatus]) -> list[Path]:
    """The configuration files of the workers."""
    found: set[Path] = set()
    for status in statuses:
        record = _latest(status)
        if record is not None and (file := config_file_of(record)):
            found.add(Path(file))
    return sorted(found)


def _tokenizer_of(status: WorkerStatus) -> Callable[[str], Sequence[int]] | None:
    record = _latest(status)
    path = Path(record.model_dir) / _TOKENIZER if record is not None and record.model_dir else None
    if path is None or not path.exists():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: list(tokenizer.encode(text).ids)


@contextmanager
def _signals() -> Iterator[None]:
    """Ignore the loss of the terminal: the command must finish what it began."""

    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _say(line: str) -> None:
    with suppress(OSError):  # the terminal is gone
        print(line, flush=True)
