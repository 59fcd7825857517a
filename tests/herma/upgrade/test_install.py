"""Versions are made beside one another, from sources that are named in full."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from herma.upgrade import InstallSource, adopt, image_runner, install, prune
from protocol.errors import ConfigError
from tests.fakes.wheels import make_environment, make_wheel
from workers.versions import BASE, Installation

DOCKER = """#!/bin/sh
echo "$@" >> {log}
case "$1 $2" in
  "image inspect") echo sha256:0123456789abcdef ;;
  "pull registry.test/bad:1") echo "no such image" >&2; exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (InstallSource(), "name one source"),
        (InstallSource(package="vllm==1.0", image="vllm:1"), "name one source"),
        (InstallSource(package="vllm"), "name the exact version"),
        (InstallSource(package="vllm>=1.0", index="http://i"), "name the exact version"),
        (InstallSource(package="vllm==1.0"), "is a bare name: name its index too"),
        (InstallSource(wheel=Path("/nowhere/vllm-1.0-py3-none-any.whl")), "there is no wheel"),
        (InstallSource(wheel=Path(__file__)), "is not the name of a wheel"),
    ],
)
def test_a_source_says_where_all_comes_from(source: InstallSource, what: str) -> None:
    """Nothing comes from wherever the package manager is set to."""
    with pytest.raises(ConfigError) as raised:
        source.check()
    assert what in str(raised.value)


def test_a_version_is_known_by_its_content(tmp_path: Path) -> None:
    """Two wheels of one name and version are two; the same file again is the same."""
    first = make_wheel(tmp_path / "a", "stub", "1.0", {"stub.py": "A = 1"})
    second = make_wheel(tmp_path / "b", "stub", "1.0", {"stub.py": "A = 2"})
    assert InstallSource(wheel=first).version_id().startswith("1.0-")
    assert InstallSource(wheel=first).version_id() != InstallSource(wheel=second).version_id()
    package = InstallSource(package="stub==1.0", index="http://i")
    assert package.version_id() == InstallSource(package="stub==1.0", index="http://i").version_id()
    assert package.version_id() != InstallSource(package="stub==1.0", index="http://j").version_id()


@pytest.mark.slow
def test_wheels_and_their_environments_are_kept_side_by_side(tmp_path: Path) -> None:
    """What a wheel needs comes from beside it or from kept wheels; what fails leaves nothing."""
    said: list[str] = []
    base = make_environment(tmp_path / "base")
    installation = Installation("stub", tmp_path / "stub")
    adopt(installation, str(base))
    make_wheel(tmp_path / "wheels", "helper", "1.0", {"helper.py": "NAME = 'helper'"})
    for version in ("1.0", "2.0"):
        code = f"from helper import NAME\ndef main(): print(NAME, {version!r})\n"
        wheel = make_wheel(
            tmp_path / "wheels" if version == "1.0" else tmp_path / "more",
            "stub",
            version,
            {"stub.py": code},
            {"stub": "stub:main"},
            requires=("helper==1.0",),
        )
        made = install(installation, InstallSource(wheel=wheel), said.append, _python(base))
        program = installation.environment(made.id) / "bin" / "stub"
        assert subprocess.check_output([program], text=True) == f"helper {version}\n"
        kept = {path.name for path in (installation.place(made.id) / "wheels").iterdir()}
        assert kept == {f"stub-{version}-py3-none-any.whl", "helper-1.0-py3-none-any.whl"}
    assert install(installation, InstallSource(wheel=wheel), said.append, _python(base)) == made
    assert said[-1] == f"version {made.id} is installed already"
    lonely = make_wheel(tmp_path / "far", "stub", "3.0", {"stub.py": ""}, requires=("nothing",))
    with pytest.raises(ConfigError, match="its wheels cannot be fetched"):
        install(installation, InstallSource(wheel=lonely), said.append, _python(base))
    assert not list(installation.folder.glob("3.0*"))
    assert installation.current() == installation.version(BASE)


@pytest.mark.slow
def test_packages_of_another_version_can_be_shared(tmp_path: Path) -> None:
    """Packages of another version can be shared: only what differs is installed; a version whose
    packages are shared is not pruned.
    """
    said: list[str] = []
    base = make_environment(tmp_path / "base")
    (packages,) = base.glob("lib/*/site-packages")
    helper = make_wheel(tmp_path / "base", "helper", "1.0", {"helper.py": "NAME = 'shared'"})
    with zipfile.ZipFile(helper) as wheel:
        wheel.extractall(packages)
    installation = Installation("stub", tmp_path / "stub")
    adopt(installation, str(base))
    shares, ids = installation.environment(BASE), []
    for version in ("1.0", "2.0", "3.0"):
        code = f"from helper import NAME\ndef main(): print(NAME, {version!r})\n"
        wheel = make_wheel(
            tmp_path, "stub", version, {"stub.py": code}, {"stub": "stub:main"}, ("helper",)
        )
        source = InstallSource(wheel=wheel, shares=shares)
        ids.append(install(installation, source, said.append, _python(base)).id)
        program = installation.environment(ids[-1]) / "bin" / "stub"
        assert subprocess.check_output([program], text=True) == f"shared {version}\n"
        if version == "2.0":
            shares = installation.environment(ids[-1])
    assert prune(installation, (ids[2],)) == [ids[0]]
    assert {version.id for version in installation.versions()} == {BASE, ids[1], ids[2]}


def _python(environment: Path) -> str:
    return str(environment / "bin" / "python")


def test_an_image_is_pulled_and_known_by_its_digest(tmp_path: Path) -> None:
    """A tag may move, so a launch gets the id."""
    docker, log = tmp_path / "docker", tmp_path / "log"
    docker.write_text(DOCKER.format(log=log))
    docker.chmod(0o755)
    installation = Installation("stub", tmp_path / "stub")
    adopt(installation, "registry.test/vllm:0.9")
    current = installation.current()
    assert current is not None
    assert (current.kind, current.reference) == ("image", "registry.test/vllm:0.9")
    runner = image_runner(["sudo", str(docker), "run", "{version}"])
    said: list[str] = []
    made = install(
        installation, InstallSource(image="registry.test/vllm:1.0", runner=runner), said.append, ""
    )
    assert (made.id, made.reference) == ("vllm-1.0-01234567", "sha256:0123456789abcdef")
    assert log.read_text().splitlines()[0] == "pull registry.test/vllm:1.0"
    with pytest.raises(ConfigError, match="cannot be pulled: no such image"):
        install(
            installation, InstallSource(image="registry.test/bad:1", runner=runner), said.append, ""
        )


def test_a_base_that_is_not_there_is_said(tmp_path: Path) -> None:
    """A path is no image."""
    with pytest.raises(ConfigError, match=r"is no directory of this host; correct launch\.base"):
        adopt(Installation("stub", tmp_path), "/nowhere/env")


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        ("herma==1.2", "herma[engine]==1.2"),
        ("/w/herma-1.2-py3.whl", "/w/herma-1.2-py3.whl[engine]"),
    ],
)
def test_the_engine_comes_with_a_new_version(wanted: str, asked: str) -> None:
    assert (
        InstallSource(package="herma==1.2", index="http://i", extra="engine").with_extra(wanted)
        == asked
    )
    assert InstallSource(package="herma==1.2", index="http://i").with_extra(wanted) == wanted
