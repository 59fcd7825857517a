"""A worker with Herma's own engine in an environment of the gateway alone."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from config import builtin_config
from protocol.errors import ConfigError
from workers import engine_extra

ROOT = Path(__file__).parents[2]


def _without_torch(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which `torch` and `llguidance` are not installed."""
    hides = tmp_path / "sitecustomize.py"
    hides.write_text(
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('torch', 'llguidance'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "from importlib import util\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name: None if name in ('torch', 'llguidance') else found(name)\n"
    )
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}


@pytest.mark.parametrize(
    "words",
    [
        ["up", "--port", "0"],
        ["worker", "--name", "w", "--model", "builtin:herma-tiny"],
        ["plan", "builtin:herma-tiny"],
    ],
    ids=lambda words: words[0],
)
def test_the_one_command_is_named_at_once(words: list[str], tmp_path: Path) -> None:
    config = tmp_path / "herma.toml"
    config.write_text(
        '[[models]]\nname = "m"\n'
        '[[workers]]\nname = "w"\nmodel = "builtin:herma-tiny"\nserves = "m"\n'
    )
    given = ["--config", str(config)] if words[0] == "worker" else []
    done = subprocess.run(
        [sys.executable, "-m", "herma", *words, *given],
        env=_without_torch(tmp_path), cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert lines, done.stdout
    assert "torch" in lines[-1]
    assert "pip install 'herma[engine]'" in lines[-1]
    assert "Traceback" not in done.stderr


def test_other_engines_need_no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    native = msgspec.structs.replace(builtin_config().workers[0], name="n")
    foreign = msgspec.structs.replace(
        native, name="f", engine="vllm", url="http://127.0.0.1:1", max_gap_ms=None
    )
    monkeypatch.setattr(engine_extra, "find_spec", lambda _name: None)
    engine_extra.check_engine_extra([foreign])
    with pytest.raises(ConfigError, match="worker `n`"):
        engine_extra.check_engine_extra([foreign, native])


def test_a_file_of_the_working_directory_is_not_run_in_place_of_ours(tmp_path: Path) -> None:
    """`python -m herma` beside a `config.py` and a `gateway.py` runs Herma's packages."""
    for name in ("config", "gateway", "workers", "protocol"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module ran')\n")
    done = subprocess.run(
        [sys.executable, "-m", "herma", "config", "check", "none.toml"],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert "the wrong module ran" not in done.stderr
    assert done.returncode == 2
