"""Upgrades of Herma itself under load: no client sees an error or a wrong byte."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.fakes.upgrades import Upgrades, upgrades
from tests.fakes.wheels import herma_base, herma_wheel
from workers.starts import load_starts

pytestmark = pytest.mark.slow

OURS = "0.1.0"
STEP_MS = 40.0

BAD: dict[str, tuple[dict[str, tuple[str, str]], str]] = {
    "does not start": (
        {"herma/cli.py": ("import argparse\n", "import argparse_of_another_python\n")},
        "it does not start: ModuleNotFoundError",
    ),
    "crashes as a worker": (
        {"workers/supervisor/app.py": ("import gc\n", "import gc\nraise SystemExit(2)\n")},
        "the one before serves again",
    ),
    "crashes as an engine": (
        {
            "workers/engine/__main__.py": (
                "import gc\n",
                "import gc\nraise OSError('no such driver')\n",
            )
        },
        "no such driver",
    ),
    "is slower": (
        {"workers/replay/synthetic.py": ("Pace(config", "Pace(1.3 * config")},
        "slower than the",
    ),
    "answers otherwise": (
        {"workers/replay/synthetic.py": (".pack(seed, index)", ".pack(seed + 1, index)")},
        "answers otherwise: question 1",
    ),
}

WORKER = """
[[workers]]
name = "w{at}"
model = "builtin:herma-tiny"
engine = "synthetic"
step_ms = {step_ms}
serves = "m"
max_seqs = 16
"""


def _workers(count: int) -> str:
    return "".join(WORKER.format(at=at, step_ms=STEP_MS) for at in range(count))


def _fleet(folder: Path, count: int) -> AbstractAsyncContextManager[Upgrades]:
    """Workers under load, in an environment that has this checkout's version."""
    base = herma_base(folder / "base")
    return upgrades(
        folder,
        _workers(count),
        count,
        has_provider=count == 1,
        argv=(str(base / "bin" / "herma"),),
        environ={"PYTHONPATH": ""},
    )


@pytest.mark.parametrize("count", [2, 1])
async def test_a_good_version_and_the_way_back(tmp_path: Path, count: int) -> None:
    """Two workers stand in for each other; for one the provider does."""
    async with _fleet(tmp_path, count) as fleet:
        wheel = herma_wheel(tmp_path / "wheels", "9.0.0")
        upgraded = await fleet.run("upgrade", "--wheel", str(wheel), "--share-packages")
        assert upgraded.status == 0, upgraded.said
        assert "it is 9.0.0" in upgraded.said
        assert _versions(fleet) == {"9.0.0"}
        assert (await fleet.run("--version")).said == "9.0.0\n"
        # `herma up` is of the version before still, and starts it as it always did.
        assert (await fleet.restarted("w0")).build == "9.0.0"
        back = await fleet.run("rollback")
        assert back.status == 0, back.said
        assert "version base is current" in back.said
        assert _versions(fleet) == {OURS}
        assert (await fleet.run("--version")).said == f"{OURS}\n"
        again = await fleet.run("rollback")
        assert (again.status, "has no earlier version" in again.said) == (2, True), again.said


@pytest.mark.parametrize("how", BAD)
@pytest.mark.parametrize("count", [2, 1])
async def test_a_bad_version_goes_by_itself(tmp_path: Path, count: int, how: str) -> None:
    """The first worker that has it is back on the old one when the command ends."""
    changes, says = BAD[how]
    async with _fleet(tmp_path, count) as fleet:
        wheel = herma_wheel(tmp_path / "wheels", "9.0.0", changes)
        upgraded = await fleet.run("upgrade", "--wheel", str(wheel), "--share-packages")
        assert upgraded.status == 1, upgraded.said
        assert says in upgraded.said
        assert "version base is current" in upgraded.said
        assert _versions(fleet) == {OURS}


def _versions(fleet: Upgrades) -> set[str]:
    """The versions of the workers, as their latest starts have recorded them."""
    folder = Path(fleet.environ["XDG_STATE_HOME"]) / "herma" / "starts"
    latest = [load_starts(path).latest for path in folder.glob("w?@*.json")]
    assert latest
    return {record.versions["herma"] for record in latest if record is not None}
