"""The text of a Containerfile and of a compose file.

Owns what a container of Herma needs: the host's network for its addresses, room in /dev/shm, time
to drain, the model's directory. Sources are wheels in a folder, never a bare name of an index.
"""

import json
from pathlib import Path
from typing import Any, Final

from config import Config, WorkerConfig
from herma.boot.units import needed_variables, worker_unit
from herma.child_processes import GRACE_S

CONTAINER_CONFIG: Final = "/etc/herma/herma.toml"
_STATE: Final = "/var/lib/herma"

_CONTAINERFILE: Final = """# Herma from the wheels in ./wheels; in a checkout: pip wheel -w wheels .
ARG BASE={base}
FROM ${{BASE}}
COPY wheels/ /wheels/
RUN python -m pip install --no-cache-dir --no-index --find-links /wheels herma && rm -r /wheels
# Compiled kernels and records of good starts outlive the container.
ENV XDG_STATE_HOME={state} XDG_CACHE_HOME={state}/cache HERMA_RUNTIME_DIR=/run/herma
RUN mkdir -m 0700 /run/herma && mkdir -p {state}
VOLUME {state}
ENTRYPOINT ["python", "-m", "herma"]
CMD ["up", "--config", "{config}"]
"""


def containerfile(base: str) -> str:
    """`base` is an image with Python."""
    return _CONTAINERFILE.format(base=base, state=_STATE, config=CONTAINER_CONFIG)


def compose_file(config: Config, path: Path, image: str) -> str:
    """One service for the gateway and one for each worker, with the configuration at `path`. JSON,
    which is YAML too: no value is ever read as another.
    """
    variables = needed_variables(config)
    services = {
        "gateway": _service(["gateway"], path, image, variables, config.gateway.drain_s + GRACE_S)
    }
    for worker in config.workers:
        words = ["worker", "--name", worker.name]
        service = _service(words, path, image, variables, worker.drain_s)
        _add_model(service, worker)
        services[worker_unit(worker.name).removesuffix(".service")] = service
    return json.dumps({"services": services, "volumes": {"herma-state": {}}}, indent=2) + "\n"


def _service(
    words: list[str], path: Path, image: str, variables: list[str], drain_s: float
) -> dict[str, Any]:
    return {
        "image": image,
        "command": [*(word.replace("$", "$$") for word in words), "--config", CONTAINER_CONFIG],
        "network_mode": "host",
        "ipc": "host",
        "init": True,
        "restart": "unless-stopped",
        "stop_grace_period": f"{drain_s + 2 * GRACE_S:.0f}s",
        "ulimits": {"nofile": 65536},
        # Compose takes those without a value from its own environment.
        "environment": [*variables, "HERMA_IMAGE_DIGEST"],
        "volumes": [f"{path}:{CONTAINER_CONFIG}:ro", f"herma-state:{_STATE}"],
    }


def _add_model(service: dict[str, Any], worker: WorkerConfig) -> None:
    """Its directory at the same path, and the card."""
    if Path(worker.model).is_absolute():
        service["volumes"].append(f"{worker.model}:{worker.model}:ro")
    if worker.engine == "native" and worker.device != "cpu":
        device = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
