"""Upgrades of somebody else's engine under load: no client sees an error or a wrong byte."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.ports import free_ports
from tests.fakes.upgrades import Upgrades, upgrades
from tests.fakes.wheels import image_runner, stub_engine_base, stub_engine_wheel
from workers.starts import load_starts

pytestmark = pytest.mark.slow

TOKEN_MS = 40.0

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "cannot be imported": ({"broken": True}, "it cannot import vllm: ImportError"),
    "crashes": ({"die_after": 2}, "killed"),
    "is never ready": ({"start_s": 3600.0}, "was not ready in 10 s"),
    "is slower": ({"token_ms": 1.3 * TOKEN_MS}, "slower than the"),
    "answers otherwise": ({"answer": [7, 8, 9]}, "answers otherwise: question 1"),
}

WORKER = """
[[workers]]
name = "{name}"
model = "builtin:herma-tiny"
engine = "vllm"
url = "http://127.0.0.1:{port}"
probe_context = 0
serves = "m"
max_seqs = 16
[workers.launch]
argv = ["{{version}}/bin/stub-engine", "{port}"]
installation = "stub"
base = "{base}"
"""


def _workers(base: Path, count: int) -> str:
    first = free_ports(count)
    return "".join(WORKER.format(name=f"w{at}", port=first + at, base=base) for at in range(count))


def _wheel(folder: Path, version: str, **settings: Any) -> str:
    return str(stub_engine_wheel(folder, version, **{"token_ms": TOKEN_MS, **settings}))


@pytest.mark.parametrize("count", [2, 1])
async def test_a_good_version_and_the_way_back(tmp_path: Path, count: int) -> None:
    """Two workers stand in for each other; for one the provider does."""
    base = stub_engine_base(tmp_path / "base", token_ms=TOKEN_MS)
    workers = _workers(base, count)
    async with upgrades(tmp_path, workers, count, has_provider=count == 1) as fleet:
        wheel = _wheel(tmp_path / "wheels", "2.0")
        upgraded = await fleet.run("upgrade", "stub", "--wheel", wheel, "--share-packages")
        assert upgraded.status == 0, upgraded.said
        assert "vllm 2.0 can be imported" in upgraded.said
        assert await _versions(fleet) == {"2.0"}
        back = await fleet.run("rollback", "stub")
        assert back.status == 0, back.said
        assert "version base is current" in back.said
        assert await _versions(fleet) == {"1.0"}


@pytest.mark.parametrize("how", BAD)
@pytest.mark.parametrize("count", [2, 1])
async def test_a_bad_version_goes_by_itself(tmp_path: Path, count: int, how: str) -> None:
    """The first worker that has it is back on the old one when the command ends."""
    settings, says = BAD[how]
    bound = ["--bound", "10"] if how == "is never ready" else []
    base = stub_engine_base(tmp_path / "base", token_ms=TOKEN_MS)
    workers = _workers(base, count)
    async with upgrades(tmp_path, workers, count, has_provider=count == 1) as fleet:
        wheel = _wheel(tmp_path / "wheels", "2.0", **settings)
        words = "upgrade", "stub", "--wheel", wheel, "--share-packages", *bound
        upgraded = await fleet.run(*words)
        assert upgraded.status == 1, upgraded.said
        assert says in upgraded.said
        assert "version base is current" in upgraded.said
        assert await _versions(fleet) == {"1.0"}


async def test_images_of_an_engine(tmp_path: Path) -> None:
    """Images of an engine, with a single worker: a bad one is taken back, a good one stays, and a
    rollback takes it away.
    """
    versions = {"1.0": {}, "1.5": {"answer": [7, 8, 9]}, "2.0": {}}
    runner = image_runner(
        tmp_path,
        {
            f"registry.test/stub:{version}": stub_engine_base(
                tmp_path / version, version, token_ms=TOKEN_MS, **settings
            )
            for version, settings in versions.items()
        },
    )
    workers = _workers(Path("registry.test/stub:1.0"), 1).replace(
        '"{version}/bin/stub-engine"', f'"{runner}", "run", "--rm", "--name", "one", "{{version}}"'
    )
    async with upgrades(tmp_path, workers, 1, has_provider=True) as fleet:
        bad = await fleet.run("upgrade", "stub", "--image", "registry.test/stub:1.5")
        assert (bad.status, "answers otherwise" in bad.said) == (1, True), bad.said
        assert await _versions(fleet) == {"1.0"}
        good = await fleet.run("upgrade", "stub", "--image", "registry.test/stub:2.0")
        assert (good.status, "vllm can be imported" in good.said) == (0, True), good.said
        assert await _versions(fleet) == {"2.0"}
        back = await fleet.run("rollback", "stub")
        assert back.status == 0, back.said
        assert await _versions(fleet) == {"1.0"}


async def test_a_killed_command_leaves_nothing_on_trial(tmp_path: Path) -> None:
    """The worker goes back by itself; the next command finds what was left, and takes it back."""
    base = stub_engine_base(tmp_path / "base", token_ms=TOKEN_MS)
    async with upgrades(tmp_path, _workers(base, 2), 2) as fleet:
        wheel = _wheel(tmp_path / "wheels", "2.0")
        words = "upgrade", "stub", "--wheel", wheel, "--share-packages"
        await fleet.end_once("w0", lambda now: now.version.startswith("2.0"), *words)
        assert fleet.workers()["w0"].is_held
        serves = await fleet.wait("w0", lambda now: not now.is_held and now.state == "ready")
        assert serves.version == "base"
        back = await fleet.run("rollback", "stub")
        assert (back.status, "was cut short" in back.said) == (0, True), back.said
        assert await _versions(fleet) == {"1.0"}


async def test_an_interrupted_command_goes_back(tmp_path: Path) -> None:
    """An interrupted command goes back while the old version is asked: its engine goes on as
    it is.
    """
    base = stub_engine_base(tmp_path / "base", token_ms=TOKEN_MS)
    async with upgrades(tmp_path, _workers(base, 2), 2) as fleet:
        wheel = _wheel(tmp_path / "wheels", "2.0")
        words = "upgrade", "stub", "--wheel", wheel, "--share-packages"
        status = await fleet.end_once("w0", lambda now: now.is_held, *words, number=signal.SIGINT)
        assert status == 1
        now = await fleet.wait("w0", lambda now: not now.is_held and now.state == "ready")
        assert (now.version, now.epoch) == ("base", 1)


async def _versions(fleet: Upgrades) -> set[str]:
    """The versions that the running engines have said of themselves."""
    folder = Path(fleet.environ["XDG_STATE_HOME"]) / "herma" / "starts"
    latest = [load_starts(path).latest for path in folder.glob("w?@*.json")]
    assert latest
    return {record.engine_version for record in latest if record is not None}
