"""A plan that is carried out: what is written down, and what an interruption leads to."""

from pathlib import Path
from typing import cast

import pytest

from herma.processes import Supervisor
from herma.upgrade import (
    Interrupted,
    MoveBounds,
    Mover,
    UpgradePlan,
    UpgradeSteps,
    VersionRejected,
    carry_out,
    given_up,
    load_plan,
    rollback,
    workers,
)
from housekeeping.state_file import held_alone
from protocol.control_messages import WorkerStatus
from protocol.errors import ConfigError
from workers.versions import Installation, InstalledVersion

PLAN = UpgradePlan("x", "1.0", "2.0", workers=("a", "b"))


class Host:
    """Workers that move, and what is to happen at a step."""

    def __init__(self, folder: Path) -> None:
        self.installation = Installation("x", folder)
        for version in ("1.0", "2.0"):
            self.installation.add(InstalledVersion(version, "environment"))
        self.installation.switch("1.0", "")
        self.steps: list[tuple[str, ...]] = []
        self.at: dict[tuple[str, ...], BaseException] = {}
        self.said: list[str] = []

    def move(self, name: str, to: str) -> None:
        self._take(name, to)

    def bring_back(self, name: str, to: str) -> None:
        self._take(name, to)

    def check(self, plan: UpgradePlan) -> None:
        self._take("check", plan.new)

    def _take(self, *step: str) -> None:
        self.steps.append(step)
        assert load_plan(self.installation.folder) is not None
        if step in self.at:
            raise self.at.pop(step)

    @property
    def current(self) -> str:
        current = self.installation.current()
        assert current is not None
        return current.id

    def run(self, plan: UpgradePlan = PLAN) -> UpgradePlan:
        steps = UpgradeSteps(self.installation, cast("Mover", self), self.check)
        return carry_out(plan, steps, self.said.append)


def test_all_steps_and_the_way_back(tmp_path: Path) -> None:
    """The links change last, and on the way back first."""
    host = Host(tmp_path)
    assert host.run().phase == "done"
    assert host.steps == [("check", "2.0"), ("a", "2.0"), ("b", "2.0")]
    assert (host.current, host.installation.previous()) == ("2.0", host.installation.version("1.0"))
    assert host.run(rollback("x", "2.0", "1.0", ("a", "b"))).phase == "undone"
    assert host.steps[3:] == [("b", "1.0"), ("a", "1.0")]
    assert (host.current, host.installation.previous()) == ("1.0", None)


def test_what_is_rejected_goes_back(tmp_path: Path) -> None:
    """All that moved, the latest first; what fails on the way is noted."""
    host = Host(tmp_path)
    host.at = {("b", "2.0"): VersionRejected("b: wrong"), ("b", "1.0"): VersionRejected("b: gone")}
    plan = host.run()
    assert (plan.phase, plan.reason, plan.troubles) == ("undone", "b: wrong", ("b: gone",))
    assert host.steps[2:] == [("b", "2.0"), ("b", "1.0"), ("a", "1.0")]
    assert host.said == ["b: wrong", "b: gone"]
    assert host.current == "1.0"
    host.at = {("check", "2.0"): VersionRejected("no card")}
    assert host.run().phase == "undone"
    assert host.steps[5:] == [("check", "2.0")]


def test_an_interruption_goes_back_and_another_leaves_it(tmp_path: Path) -> None:
    """The next command reads where it was."""
    host = Host(tmp_path)
    host.at = {("b", "2.0"): Interrupted(), ("a", "1.0"): Interrupted()}
    with pytest.raises(Interrupted):
        host.run()
    left = load_plan(tmp_path)
    assert left is not None
    assert (left.phase, left.touched, left.reason) == ("return", ("a",), "interrupted")
    assert host.run(given_up(left, "herma rollback")).phase == "undone"
    assert host.steps[-1] == ("a", "1.0")


def test_a_killed_command_has_written_what_it_may_have_changed(tmp_path: Path) -> None:
    """A worker counts as touched before anything is asked of it."""
    host = Host(tmp_path)
    host.at = {("a", "2.0"): KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        host.run()
    left = load_plan(tmp_path)
    assert left is not None
    assert (left.phase, left.touched, left.moved) == ("move", ("a",), ())


@pytest.mark.parametrize("content", [b'{"installation": 1}', b'{"installation": "\xff"}'])
def test_a_plan_that_cannot_be_read_is_said(tmp_path: Path, content: bytes) -> None:
    """A plan that cannot be read is reported with its path."""
    assert load_plan(tmp_path) is None
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"plan\.json cannot be read: .*; remove it"):
        load_plan(tmp_path)


def test_two_commands_do_not_change_one_installation(tmp_path: Path) -> None:
    """The second one is refused at once."""
    with (
        held_alone(tmp_path / "lock", "an upgrade of x"),
        pytest.raises(ConfigError, match="an upgrade of x is under way already"),
        held_alone(tmp_path / "lock", "an upgrade of x"),
    ):
        pass
    with held_alone(tmp_path / "lock", "an upgrade of x"):
        pass


def test_workers_of_one_name_are_told_apart_before_anything_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step finds its worker by name: it would move that of another file."""
    files = (tmp_path / "a.toml", tmp_path / "b.toml")
    running = [
        Supervisor(
            tmp_path / str(pid),
            pid,
            WorkerStatus("w", pid, "m", "m", "ready", 1, 0, config=str(file), installation="x"),
        )
        for pid, file in enumerate(files, 1)
    ]
    monkeypatch.setattr(workers, "supervisors", lambda: iter(running))
    mover = Mover(
        Installation("x", tmp_path), MoveBounds(), lambda _: None, lambda: (), lambda _: None
    )
    with pytest.raises(ConfigError) as refused:
        mover.names()
    for file in files:
        assert str(file) in str(refused.value)
    del running[1]
    assert mover.names() == ["w"]
