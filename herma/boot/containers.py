"""The text of a Containerfile and of a compose file.

Owns what a container of Herma needs: the host's network for its addresses, room in /dev/shm, time
to drain, and the host's files that the configuration names, at the same paths. Sources are wheels
in a folder, never a bare name of an index.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from config import INDEX_DRAFTERS, Config, WorkerConfig, worker_address
from herma.boot.units import needed_variables, worker_unit
from herma.child_processes import GRACE_S
from protocol.addresses import IPC_PREFIX

CONTAINER_CONFIG: Final = "/etc/herma/herma.toml"
_STATE: Final = "/var/lib/herma"
_CONTROL: Final = "/run/herma-control"
"""A folder of each container's own, because control sockets are named by process ids, which are the
container's. Sockets that the file places in /run/herma are shared by all containers.
"""

_CONTAINERFILE: Final = """# Herma from the wheels in ./wheels. In a checkout:
# pip wheel -w wheels '.[engine]', or `pip wheel -w wheels .` in front of other engines.
ARG BASE={base}
FROM ${{BASE}}
COPY wheels/ /wheels/
RUN python -m pip install --no-cache-dir --no-index /wheels/*.whl && rm -r /wheels
# Compiled kernels and records of good starts outlive the container.
ENV XDG_STATE_HOME={state} XDG_CACHE_HOME={state}/cache HERMA_RUNTIME_DIR={control}
RUN mkdir -m 0700 {control} && mkdir -p {state}
VOLUME {state}
ENTRYPOINT ["python", "-P", "-m", "herma"]
CMD ["up", "--config", "{config}"]
"""


def containerfile(base: str) -> str:
    """The Containerfile; `base` is an image with Python."""
    return _CONTAINERFILE.format(base=base, state=_STATE, control=_CONTROL, config=CONTAINER_CONFIG)


def compose_file(config: Config, path: Path, image: str) -> str:
    """The compose file: one service for the gateway and one for each worker, with the configuration
    at `path`. It is JSON, which is also YAML, so that no value is read as another type.
    """
    variables = needed_variables(config)
    services = {
        "gateway": _service(["gateway"], path, image, variables, config.gateway.drain_s + GRACE_S)
    }
    # In a container the state directory is in the state volume, which all containers mount.
    own = worker_address(str(path), os.environ)
    _mount(services["gateway"], path.parent, _gateway_files(config), _written(config, own))
    for worker in config.workers:
        words = ["worker", "--name", worker.name]
        service = _service(words, path, image, variables, worker.drain_s)
        _mount(service, path.parent, _worker_files(worker), _sockets(worker.gateways, own))
        _add_card(service, worker)
        services[worker_unit(worker.name).removesuffix(".service")] = service
    return json.dumps({"services": services, "volumes": {"herma-state": {}}}, indent=2) + "\n"


def _gateway_files(config: Config) -> list[str | None]:
    """The files that a gateway reads."""
    gateway = config.gateway
    keys = [provider.api_key_file for provider in config.providers.values()]
    return [
        gateway.curve_secret_file, gateway.tls_certificate_file, gateway.tls_key_file, *keys,
    ]  # fmt: skip


def _written(config: Config, own: str) -> list[str]:
    """The folders that a gateway writes to, as far as the configuration names them."""
    gateway = config.gateway
    files = config.ledger.path, gateway.responses.path, gateway.signing_key_file
    folders = [str(Path(file).parent) for file in files if file is not None]
    return [*folders, *_sockets((gateway.worker_bind,), own)]


def _worker_files(worker: WorkerConfig) -> list[str | None]:
    """The paths that a worker reads: its model, its drafter, its script, its key."""
    chosen = worker.drafting
    drafter = None if chosen is None or chosen.drafter in INDEX_DRAFTERS else chosen.drafter
    named = [name if name and name[0] in "/.~" else None for name in (worker.model, drafter)]
    return [*named, worker.script, worker.curve_secret_file]


def _sockets(addresses: Iterable[str], own: str) -> list[str]:
    """The folders of Unix sockets that connect containers, without that of the address `own`."""
    named = [one for one in addresses if one.startswith(IPC_PREFIX) and one != own]
    paths = [one.removeprefix(IPC_PREFIX) for one in named]
    return [str(Path(path).parent) for path in paths if path[0] != "@"]


def _mount(
    service: dict[str, Any], folder: Path, read: Iterable[str | None], written: Iterable[str]
) -> None:
    """Mount the paths at the same places; a relative path starts from the configuration's folder,
    as in units.
    """
    volumes = [
        *service["volumes"],
        *["{0}:{0}:ro".format(_placed(folder, name)) for name in read if name is not None],
        *["{0}:{0}".format(_placed(folder, name)) for name in written],
    ]
    service["volumes"] = [one.replace("$", "$$") for one in dict.fromkeys(volumes)]


def _placed(folder: Path, name: str) -> Path:
    return folder / Path(name).expanduser()


def _service(
    words: list[str], path: Path, image: str, variables: list[str], drain_s: float
) -> dict[str, Any]:
    return {
        "image": image,
        "command": [*(word.replace("$", "$$") for word in words), "--config", CONTAINER_CONFIG],
        "network_mode": "host",
        "ipc": "host",
        "init": True,
        "working_dir": str(path.parent),
        "restart": "unless-stopped",
        "stop_grace_period": f"{drain_s + 2 * GRACE_S:.0f}s",
        "ulimits": {"nofile": 65536},
        # Compose takes variables without a value from its own environment.
        "environment": [*variables, "HERMA_IMAGE_DIGEST"],
        "volumes": [f"{path}:{CONTAINER_CONFIG}:ro", f"herma-state:{_STATE}"],
    }


def _add_card(service: dict[str, Any], worker: WorkerConfig) -> None:
    if worker.engine == "native" and worker.device != "cpu":
        device = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
