"""Small wheels and environments that tests install versions from."""

import base64
import hashlib
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    scripts: Mapping[str, str] | None = None,
    requires: tuple[str, ...] = (),
) -> Path:
    """A pure wheel of these files. `scripts` maps programs to MODULE:FUNCTION."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    points = "".join(f"{program} = {target}\n" for program, target in (scripts or {}).items())
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{points}",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for place, text in content.items():
            data = text if isinstance(text, bytes) else text.encode()
            # A fixed time, so that the same files make the same wheel.
            wheel.writestr(zipfile.ZipInfo(place, (2026, 1, 1, 0, 0, 0)), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{place},sha256={digest},{len(data)}\n"
        wheel.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


def make_environment(folder: Path, *paths: Path) -> Path:
    """An environment without pip that also sees `paths`, and the packages of the one that runs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/*/site-packages")
    seen = [*paths, sysconfig.get_path("purelib")]
    (packages / "seen.pth").write_text("\n".join(map(str, seen)))
    return folder


def add_program(environment: Path, name: str, code: str) -> Path:
    """A program of the environment, as an installed wheel would have it."""
    program = environment / "bin" / name
    program.write_text(f"#!{environment}/bin/python\n{code}")
    program.chmod(0o755)
    return program


def stub_engine_code(**settings: object) -> str:
    """A module that passes for somebody else's engine: `stub-engine PORT`."""
    return (
        "import json, sys\n"
        f"__version__ = {settings.get('version')!r}\n"
        "def main():\n"
        "    from tests.fakes import foreign_engine\n"
        f"    sys.argv = ['stub', sys.argv[1], json.dumps({settings!r})]\n"
        "    foreign_engine.main()\n"
    )


def stub_engine_wheel(
    folder: Path, version: str, *, broken: bool = False, **settings: object
) -> Path:
    """A version of that engine; a `broken` one cannot be imported."""
    code = stub_engine_code(version=version, **settings)
    if broken:
        code = "raise ImportError('libmissing.so: cannot open shared object file')\n"
    return make_wheel(
        folder, "stub_engine", version, {"vllm.py": code}, {"stub-engine": "vllm:main"}
    )


def stub_engine_base(folder: Path, version: str = "1.0", **settings: object) -> Path:
    """An environment that somebody made by hand, with the first version in it."""
    base = make_environment(folder, ROOT)
    (packages,) = base.glob("lib/*/site-packages")
    (packages / "vllm.py").write_text(stub_engine_code(version=version, **settings))
    add_program(base, "stub-engine", "from vllm import main\nmain()\n")
    return base


_RUNNER = """import os, sys
IMAGES = {images!r}
words = sys.argv[1:]
if words[0] == "pull":
    sys.exit(0 if words[1] in IMAGES else f"no image {{words[1]}}")
if words[:2] == ["image", "inspect"]:
    print("sha256:" + IMAGES[words[-1]][0])
    sys.exit()
at = next(at for at, word in enumerate(words) if word in IMAGES or word.startswith("sha256:"))
named = {{f"sha256:{{digest}}": bin for digest, bin in IMAGES.values()}}
folder = named.get(words[at]) or IMAGES[words[at]][1]
is_other = "--entrypoint" in words
program = words[words.index("--entrypoint") + 1] if is_other else "stub-engine"
program = f"{{folder}}/{{program}}"
os.execv(program, [program, *words[at + 1 :]])
"""


def image_runner(folder: Path, images: Mapping[str, Path]) -> Path:
    """A program that stands for one that runs containers: an image is an environment's program."""
    digests = {
        name: (hashlib.sha256(name.encode()).hexdigest(), str(place / "bin"))
        for name, place in images.items()
    }
    program = folder / "podman"
    program.write_text(f"#!{sys.executable}\n{_RUNNER.format(images=digests)}")
    program.chmod(0o755)
    return program


_PACKAGES = ("herma", "gateway", "workers", "config", "protocol", "kernels")


def herma_wheel(
    folder: Path, version: str, changes: Mapping[str, tuple[str, str]] | None = None
) -> Path:
    """Herma as another version. Each of `changes` is a file, a text in it and what stands there
    instead.
    """
    files: dict[str, str | bytes] = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for package in _PACKAGES
        for path in sorted((ROOT / package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    its_version = ('VERSION: Final = "', f'VERSION: Final = "{version}" or "')
    for name, (old, new) in {**(changes or {}), "protocol/version.py": its_version}.items():
        content = files[name]
        assert isinstance(content, bytes)
        assert content.count(old.encode()) == 1, (name, old)
        files[name] = content.replace(old.encode(), new.encode())
    return make_wheel(folder, "herma", version, files, {"herma": "herma.cli:main"})


def herma_base(folder: Path) -> Path:
    """An environment in which the checkout is installed."""
    base = make_environment(folder, ROOT)
    add_program(base, "herma", "import sys\nfrom herma.cli import main\nsys.exit(main())\n")
    return base
