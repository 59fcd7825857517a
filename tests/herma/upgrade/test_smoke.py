"""What is proved of a version before anything stops for it."""

import sys
from pathlib import Path

import pytest

from herma.upgrade import Smoke, VersionRejected
from herma.upgrade.smoke import in_container, ranks_of
from tests.fakes.wheels import add_program, make_environment

DOCTOR = """import json
print(json.dumps([dict(level="error", check=check, what=what) for check, what in {found}]))
"""


@pytest.mark.parametrize(
    ("argv", "ranks"),
    [
        (["vllm", "serve", "m"], 1),
        (["vllm", "serve", "--tensor-parallel-size", "2"], 2),
        (["sglang", "--tp=4", "--port", "1"], 4),
        (["vllm", "-tp", "8"], 8),
        (["vllm", "-tp"], 1),
    ],
)
def test_ranks_are_read_from_the_command_line(argv: list[str], ranks: int) -> None:
    """Ranks are read from the command line, as far as flags say it."""
    assert ranks_of(argv) == ranks


def test_a_command_of_the_operator_must_succeed() -> None:
    """The operator's command must succeed; its last line is the reason if it does not."""
    smoke = Smoke(print, {})
    smoke.command([sys.executable, "-c", "print('fine')"])
    with pytest.raises(VersionRejected, match="failed: no driver"):
        smoke.command([sys.executable, "-c", "raise SystemExit('no driver')"])
    with pytest.raises(VersionRejected, match="cannot run: No such file"):
        smoke.command(["/nowhere/program"])


@pytest.mark.slow
def test_ranks_must_add_up(tmp_path: Path) -> None:
    """Ranks must add up in the version's own environment, over gloo where there are no cards."""
    said: list[str] = []
    environment = make_environment(tmp_path / "env")
    Smoke(said.append, {}).collectives(environment, 2)
    assert "2 ranks agree" in said[0] or "cards are full" in said[0]
    (packages,) = environment.glob("lib/*/site-packages")
    (packages / "torch.py").write_text("raise ImportError('libtorch is missing')")
    (packages / "zz.pth").write_text(f"import sys; sys.path.insert(0, {str(packages)!r})")
    with pytest.raises(
        VersionRejected, match="do not work together: ImportError: libtorch is missing"
    ):
        Smoke(said.append, {}).collectives(environment, 2)


def test_an_engine_must_be_importable(tmp_path: Path) -> None:
    """The module of an engine's kind must be importable; other kinds have no known module."""
    said: list[str] = []
    environment = make_environment(tmp_path / "env")
    (packages,) = environment.glob("lib/*/site-packages")
    (packages / "vllm.py").write_text("__version__ = '0.9'")
    (packages / "sglang.py").write_text("raise ImportError('libmissing.so')")
    smoke = Smoke(said.append, {"PYTHONPATH": "/nowhere"})
    smoke.environment(environment, None, "vllm", ["vllm", "serve"])
    assert said == ["vllm 0.9 can be imported"]
    smoke.environment(environment, None, "openai", [])
    with pytest.raises(VersionRejected, match="cannot import sglang: ImportError: libmissing"):
        smoke.environment(environment, None, "sglang", [])


def test_only_what_the_new_doctor_alone_finds_counts(tmp_path: Path) -> None:
    """A trouble that the host has with the old version too is no reason to stay with it."""
    both, more = [("driver", "too old")], [("driver", "too old"), ("cuda", "none")]
    folders = {name: tmp_path / name for name in ("old", "new", "odd")}
    for name, found in (("old", both), ("new", more), ("odd", None)):
        (folders[name] / "bin").mkdir(parents=True)
        (folders[name] / "bin" / "python").symlink_to(sys.executable)
        code = "print('?')" if found is None else DOCTOR.format(found=found)
        add_program(folders[name], "herma", code)
    old, new, odd = (str(folders[name] / "bin" / "herma") for name in ("old", "new", "odd"))
    smoke = Smoke(print, {})
    smoke.doctor(old, new, ())
    with pytest.raises(VersionRejected, match="its doctor finds an error: cuda: none"):
        smoke.doctor(new, old, ())
    with pytest.raises(VersionRejected, match="doctor --json` failed"):
        smoke.doctor(odd, old, ())


LAUNCH = "docker run --rm -d --name vllm0 -p 8000:8000 --gpus all --restart=always --ipc host"


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        ([*LAUNCH.split(), "img", "--port", "1"], "docker run --rm --gpus all --ipc host"),
        (["sudo", "podman", "run", "--device=gpu", "img"], "sudo podman run --device=gpu"),
        (["podman", "run", "other"], "podman run --rm"),
        ([], "docker run --rm"),
    ],
)
def test_a_second_container_has_the_cards_of_the_first(argv: list[str], kept: str) -> None:
    """A second container has the cards of the first, and not its name, its ports or its restart
    policy.
    """
    words = in_container(argv, "img", "python3")
    assert words == [*kept.split(), "--entrypoint", "python3"]
