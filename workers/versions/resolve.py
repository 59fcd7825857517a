"""The value of `{version}` in a worker's launch. Owns the placeholder, and the check for parts of a
launch that this host lacks. The version is looked up at each start of an engine, so an engine that
is started again runs what is current then.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from config import LaunchConfig, WorkerConfig
from protocol.errors import ConfigError
from workers.versions.installation import InstalledVersion, installation_of

PLACEHOLDER: Final = "{version}"
BASE: Final = "base"
"""The version that `launch.base` names."""


def launch_version(
    launch: LaunchConfig, environ: Mapping[str, str], wanted: str | None = None
) -> tuple[str, str]:
    """The id and the place (a directory, or an image's reference) of the version that `launch`
    starts now: `wanted`, else the current one, else its base. Raises `ConfigError` if it is not
    there.
    """
    assert launch.installation is not None
    installation = installation_of(launch.installation, environ)
    version = installation.current() if wanted is None else installation.version(wanted)
    if version is not None:
        return version.id, _place(version, str(installation.environment(version.id)))
    if wanted in (None, BASE) and launch.base is not None:
        return BASE, launch.base
    what = "version" if wanted is None else f"version {wanted}"
    raise ConfigError(
        f"installation `{launch.installation}` has no {what} on this host, and the launch has no "
        f"base: `herma upgrade {launch.installation}` installs one"
    )


def resolved(
    config: WorkerConfig, environ: Mapping[str, str], wanted: str | None = None
) -> tuple[WorkerConfig, str]:
    """The configuration with the version's place for each `{version}` of its launch, and the
    version's id; as it is, and "", if it has no installation. Raises `ConfigError`.
    """
    launch = config.launch
    if launch is None or launch.installation is None:
        return config, ""
    version_id, place = launch_version(launch, environ, wanted)
    filled = msgspec.structs.replace(
        launch,
        argv=tuple(word.replace(PLACEHOLDER, place) for word in launch.argv),
        stop=tuple(word.replace(PLACEHOLDER, place) for word in launch.stop),
        env={name: value.replace(PLACEHOLDER, place) for name, value in launch.env.items()},
        cwd=None if launch.cwd is None else launch.cwd.replace(PLACEHOLDER, place),
        installation=None,
        base=None,
    )
    return msgspec.structs.replace(config, launch=filled), version_id


def launch_problems(
    config: WorkerConfig, environ: Mapping[str, str], wanted: str | None = None
) -> Iterator[str]:
    """One line for each thing that the worker's external engine needs and this host lacks."""
    if config.api_key_env is not None and not environ.get(config.api_key_env):
        yield f"the environment variable {config.api_key_env}, named by api_key_env, is not set"
    try:
        launch = resolved(config, environ, wanted)[0].launch
    except ConfigError as error:
        yield str(error)
        return
    if launch is None:
        return
    folder = Path(launch.cwd or ".")
    if not folder.is_dir():
        yield f"launch.cwd {launch.cwd} is no directory of this host"
    path = launch.env.get("PATH", environ.get("PATH"))
    for key, words in (("argv", launch.argv), ("stop", launch.stop)):
        # A name with a slash is sought from the working directory, others on the path.
        name = str(folder / words[0]) if words and "/" in words[0] else "".join(words[:1])
        if name and shutil.which(name, path=path) is None:
            yield f"launch.{key}[0] {words[0]} is no program of this host"


def _place(version: InstalledVersion, environment: str) -> str:
    return version.reference if version.kind == "image" else environment
