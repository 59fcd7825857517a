"""Installs a version beside the others: an environment from wheels, or an image.

Owns the sources and the commands. A source is a wheel's path, a name with its exact version and an
index, or an image's reference; never a bare name, which would come from the package manager's
default index. Blocks.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from herma.terminal import busy
from housekeeping.state_file import make_private
from protocol.errors import ConfigError
from workers.versions import BASE, Installation, InstalledVersion

_REQUIREMENT: Final = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w,.-]+\])?==[\w.!+-]+")
_WHEEL: Final = re.compile(r"([\w.]+)-([\w.!+]+)(-\w+)?-[\w.]+-[\w.]+-[\w.]+\.whl")
_TAG_LETTERS: Final = 8
_SHOWN_LINES: Final = 6
_IMAGE_RUNNERS: Final = ("docker", "podman", "nerdctl")
_SHARED: Final = "herma-shared.pth"


@dataclass(frozen=True, slots=True)
class InstallSource:
    """One of `wheel`, `package` (NAME==VERSION, of `index`) or `image`, which `runner` pulls.
    `constraints` is a file for the package manager. `shares` is an environment whose packages the
    new one also sees, so that only the differing ones are installed. `extra` is the extra of the
    distribution that the version needs besides.
    """

    wheel: Path | None = None
    package: str | None = None
    index: str | None = None
    image: str | None = None
    runner: str = _IMAGE_RUNNERS[0]
    constraints: Path | None = None
    shares: Path | None = None
    extra: str | None = None

    def with_extra(self, wanted: str) -> str:
        """`wanted` (a requirement, or the path of a wheel) with the extra."""
        if self.extra is None:
            return wanted
        name, equals, version = wanted.partition("==")
        return f"{name}[{self.extra}]{equals}{version}"

    def check(self) -> None:
        """Raise `ConfigError` unless the source says where all packages come from."""
        if [self.wheel, self.package, self.image].count(None) != 2:
            raise ConfigError("name one source: --wheel PATH, --package NAME==VERSION or --image")
        if self.package is not None:
            if not _REQUIREMENT.fullmatch(self.package):
                raise ConfigError(
                    f"--package {self.package}: name the exact version, NAME==VERSION"
                )
            if self.index is None:
                raise ConfigError(
                    f"--package {self.package} is a bare name: name its index too, with --index URL"
                )
        if self.wheel is not None:
            if not self.wheel.is_file():
                raise ConfigError(f"there is no wheel {self.wheel}")
            if not _WHEEL.fullmatch(self.wheel.name):
                raise ConfigError(f"{self.wheel.name} is not the name of a wheel")

    @property
    def words(self) -> str:
        """The source in words."""
        if self.package is not None:
            return f"{self.package} of {self.index}"
        return str(self.image or self.wheel)

    def version_id(self) -> str:
        """The id of the version; for an image it needs the digest."""
        if self.wheel is not None:
            match = _WHEEL.fullmatch(self.wheel.name)
            assert match is not None
            return f"{match[2]}-{_tag(self.wheel.read_bytes())}"
        assert self.package is not None
        return f"{self.package.partition('==')[2]}-{_tag(self.words.encode())}"


def adopt(installation: Installation, base: str) -> InstalledVersion:
    """Record the existing version as the first one. `base` is the directory of an environment, or
    an image's reference. Raises `ConfigError`.
    """
    if (current := installation.current()) is not None:
        return current
    path = Path(base)
    if path.is_dir():
        place = installation.place(BASE)
        make_private(place)
        (place / "env").unlink(missing_ok=True)
        (place / "env").symlink_to(path.resolve())
        version = InstalledVersion(BASE, "environment", source=base, made_at=time.time())
    elif "/" in base and base.startswith(("/", ".", "~")):
        raise ConfigError(f"{base} is no directory of this host; correct launch.base")
    else:
        version = InstalledVersion(BASE, "image", reference=base, source=base, made_at=time.time())
    installation.add(version)
    installation.switch(BASE, "")
    return version


def install(
    installation: Installation, source: InstallSource, say: Callable[[str], None], python: str
) -> InstalledVersion:
    """Make the version of `source`, unless it exists. `python` makes its environment.

    Raises `ConfigError` with the cause; then nothing of the version is left.
    """
    if source.image is not None:
        return _pull(installation, source, say)
    version_id = source.version_id()
    if (version := installation.version(version_id)) is not None:
        say(f"version {version_id} is installed already")
        return version
    say(f"installing version {version_id} from {source.words}")
    installation.remove(version_id)
    try:
        _make_environment(installation, version_id, source, python)
    except ConfigError:
        installation.remove(version_id)
        raise
    shares = "" if source.shares is None else str(source.shares)
    version = InstalledVersion(version_id, "environment", "", source.words, time.time(), shares)
    installation.add(version)
    return version


def _make_environment(
    installation: Installation, version_id: str, source: InstallSource, python: str
) -> None:
    place = installation.place(version_id)
    env, wheels = place / "env", place / "wheels"
    make_private(wheels)
    bare = ["--without-pip"] if source.shares is not None else []
    _run([python, "-m", "venv", *bare, str(env)], "the environment cannot be made")
    inner = str(env / "bin" / "python")
    pip = [inner, "-m", "pip"]
    if source.shares is not None:
        _share(inner, source.shares)
        pip = [sys.executable, "-m", "pip", "--python", inner]
    quiet = ["--isolated", "--disable-pip-version-check", "--quiet"]
    wanted = source.with_extra(source.package or str(source.wheel))
    given = ["--constraint", str(source.constraints)] if source.constraints is not None else []
    deps = ["--no-deps"] if source.shares is not None else []
    with busy("fetching its wheels"):
        into = ["--only-binary", ":all:", "--dest", str(wheels)]
        origins = [*given, *_origins(installation, source)]
        _run(
            [*pip, "download", *quiet, *into, *deps, *origins, wanted],
            "its wheels cannot be fetched",
        )
    main = wanted
    if source.wheel is not None:
        main = source.with_extra(str(wheels / source.wheel.name))
    with busy("installing its wheels"):
        _run(
            [*pip, "install", *quiet, "--no-index", "--find-links", str(wheels), *given, main],
            "its wheels cannot be installed",
        )


def _origins(installation: Installation, source: InstallSource) -> list[str]:
    """The allowed origins of wheels: the index that the user names, else the folder of the wheel
    and the kept wheels of other versions.
    """
    if source.index is not None:
        return ["--index-url", source.index]
    assert source.wheel is not None
    folders = [source.wheel.resolve().parent, *installation.folder.glob("*/wheels")]
    return ["--no-index", *(word for one in folders for word in ("--find-links", str(one)))]


def _share(python: str, environment: Path) -> None:
    """Let the environment of `python` see the packages of another, behind its own."""
    their_version, theirs = _packages_of(str(environment / "bin" / "python"))
    our_version, ours = _packages_of(python)
    if their_version != our_version:
        raise ConfigError(f"{environment} has another Python, so its packages cannot be shared")
    # As a folder of packages of its own, with those that it shares itself.
    line = f"import site; site.addsitedir({str(theirs)!r})\n"
    (ours / _SHARED).write_text(line, encoding="utf-8")


def _packages_of(python: str) -> tuple[str, Path]:
    """The version of an interpreter, and where its packages are."""
    code = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_path('purelib'))"
    major, minor, folder = _run([python, "-c", code], f"{python} cannot run").strip().split(" ", 2)
    return f"{major}.{minor}", Path(folder)


def _pull(
    installation: Installation, source: InstallSource, say: Callable[[str], None]
) -> InstalledVersion:
    """Pull the image; the version records its id, which no tag moves."""
    assert source.image is not None
    say(f"pulling {source.image}")
    with busy(f"pulling {source.image}"):
        _run([source.runner, "pull", source.image], f"{source.image} cannot be pulled")
    inspected = [source.runner, "image", "inspect", "--format", "{{.Id}}", source.image]
    reference = _run(inspected, f"{source.image} cannot be inspected").strip()
    tag = source.image.rpartition("/")[2].partition("@")[0].replace(":", "-")
    digest = reference.rpartition(":")[2][:_TAG_LETTERS]
    version = InstalledVersion(f"{tag}-{digest}", "image", reference, source.image, time.time())
    installation.add(version)
    return version


def image_runner(argv: Sequence[str]) -> str:
    """The program that runs images, as a launch names it."""
    return next((word for word in argv if Path(word).name in _IMAGE_RUNNERS), _IMAGE_RUNNERS[0])


def prune(installation: Installation, keep: Sequence[str]) -> list[str]:
    """Remove the versions that are not in `keep`; return their ids. Versions whose packages a kept
    one shares stay. The base stays too: its environment is not ours, and its programs hand over by
    its record.
    """
    found = list(installation.versions())
    shared = {version.shares for version in found if version.id in keep}
    removed: list[str] = []
    for version in found:
        is_shared = str(installation.environment(version.id)) in shared
        if version.id not in (*keep, BASE) and not is_shared:
            installation.remove(version.id)
            removed.append(version.id)
    return removed


def _run(argv: Sequence[str], failure: str) -> str:
    """The output of a command. Raises `ConfigError` with the last lines of a failed one."""
    if shutil.which(argv[0]) is None:
        raise ConfigError(f"{failure}: there is no program {argv[0]}")
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-_SHOWN_LINES:]
        raise ConfigError(f"{failure}: {'; '.join(line.strip() for line in lines)}")
    return done.stdout


def _tag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_TAG_LETTERS]
