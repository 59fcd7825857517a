"""The facts of a start on a planted machine, and full hashes."""

import os
import subprocess
from pathlib import Path

import pytest

from config import WorkerConfig, builtin_config
from protocol.errors import ConfigError
from workers.starts import (
    MachineOrigin,
    StartRecord,
    deep_differences,
    driver_version,
    gather,
    hashes_path,
)
from workers.starts.gather import commit_of, read_weights

SITE = Path("/site")


def origin_of(root: Path) -> MachineOrigin:
    return MachineOrigin(root, SITE, Path("/src"))


def write(root: Path, name: str, content: str | bytes = "") -> Path:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def gathered(root: Path, config: WorkerConfig | None = None, **environ: str) -> StartRecord:
    (worker,) = builtin_config().workers
    return gather(
        origin_of(root),
        config or worker,
        arguments=["--name", "local", "--gateway", "ipc:///x"],
        environ=environ,
        model_dir="/m",
        at=1.0,
    )


def test_a_planted_machine(tmp_path: Path) -> None:
    """Every file that says something."""
    write(tmp_path, "/site/torch-2.11.0+cu130.dist-info/METADATA")
    write(tmp_path, "/proc/driver/nvidia/version", "NVRM version: NVIDIA x86_64  580.126.09  x")
    write(tmp_path, "/proc/sys/kernel/osrelease", "6.8.0-50-generic\n")
    write(tmp_path, "/run/.containerenv", 'name="x"\nimageid="sha256:abc"\n')
    write(tmp_path, "/etc/ld.so.preload", "/lib/vgpu.so\n")
    write(tmp_path, "/lib/vgpu.so", b"x" * 676)
    write(tmp_path, "/m/config.json", "{}")
    write(tmp_path, "/src/.git/HEAD", "ref: refs/heads/main\n")
    write(tmp_path, "/src/.git/packed-refs", "# pack\n" + "b" * 40 + " refs/heads/main\n")
    found = gathered(tmp_path, LD_PRELOAD="/gone.so", OMP_NUM_THREADS="8")
    assert found.versions["torch"] == "2.11.0+cu130"
    assert (found.driver, found.kernel) == ("580.126.09", "6.8.0-50-generic")
    assert (found.image, found.commit) == ("sha256:abc", "b" * 40)
    assert {name: one.num_bytes for name, one in found.libraries.items()} == {
        "/lib/vgpu.so": 676,
        "/gone.so": 0,
    }
    assert list(found.weights) == ["config.json"]
    assert found.config["model"] == "builtin:herma-tiny"
    assert "gateways" not in found.config


def test_an_empty_machine_says_nothing(tmp_path: Path) -> None:
    found = gathered(tmp_path)
    assert (found.commit, found.driver, found.image, found.weights) == ("", "", "", {})


def test_the_commit_of_a_checkout_and_of_a_worktree(tmp_path: Path) -> None:
    """The commit of a checkout and of a worktree is that which git itself says."""
    main, tree = tmp_path / "main", tmp_path / "tree"

    def git(*words: str, folder: Path = main) -> str:
        argv = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@y", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    main.mkdir()
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "x")
    git("worktree", "add", "-q", str(tree))
    git("commit", "-q", "--allow-empty", "-m", "y", folder=tree)
    for folder in (main, tree):
        origin = MachineOrigin(Path("/"), SITE, folder)
        assert commit_of(origin) == git("rev-parse", "HEAD", folder=folder)


def test_the_header_of_safetensors_counts(tmp_path: Path) -> None:
    """Two files of one size whose headers or texts differ."""
    for body in (b"A", b"B"):
        header = b'{"' + body * 70_000 + b'":0}'
        write(tmp_path, "/m/a.safetensors", len(header).to_bytes(8, "little") + header + b"w")
        write(tmp_path, "/m/t.json", body)
        found = read_weights(origin_of(tmp_path), "/m")
        if body == b"A":
            before = found
    assert all(before[name].num_bytes == found[name].num_bytes for name in found)
    assert all(before[name].header != found[name].header for name in found)


def test_full_hashes_find_what_sizes_and_times_hide(tmp_path: Path) -> None:
    """The first comparison keeps them; a file of the same size and time with other bytes is found,
    again and again, and one that cannot be read is an error.
    """
    file = write(tmp_path, "/m/w.bin", b"a" * 200_000)
    os.utime(file, ns=(5, 5))
    path = hashes_path(tmp_path / "state" / "w.json")
    good = gathered(tmp_path)
    assert deep_differences(path, good, good, tmp_path / "m") == []
    file.write_bytes(b"a" * 199_999 + b"b")
    os.utime(file, ns=(5, 5))
    now = gathered(tmp_path)
    assert now.weights == good.weights
    for _ in range(2):
        (found,) = deep_differences(path, good, now, tmp_path / "m")
        assert (found.boundary, found.what) == ("weights", "w.bin has another content")
    for content in (b"[]", b'{"\xff": {}}'):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="remove it"):
            deep_differences(path, good, now, tmp_path / "m")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n"
                "GCC version:  gcc version 12.3.0\n"
            ),
            "535.104.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.142  Release Build\n",
            "580.142",
        ),
        ("", ""),
    ],
)
def test_the_driver_is_that_of_the_loaded_module(tmp_path: Path, text: str, version: str) -> None:
    """One rule for records of starts and for ranks that compare their hosts."""
    file = tmp_path / "proc/driver/nvidia/version"
    assert driver_version(tmp_path) == ""
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert driver_version(tmp_path) == version
