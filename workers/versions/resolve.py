"""What stands for `{version}` in a worker's launch.

Owns the placeholder. The version is looked up at each start of an engine, so an engine that is
started again runs what is current then.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from config import LaunchConfig, WorkerConfig
from protocol.errors import ConfigError
from workers.versions.installation import Version, installation_of

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


def _place(version: Version, environment: str) -> str:
    return version.reference if version.kind == "image" else environment
