"""Our own engine on two hosts: a real gateway, two real supervisors, and an engine at each.

Where the machine allows it, the second rank is in a network namespace of its own.
"""

from pathlib import Path
from typing import Any

import pytest

from protocol.transport import write_curve_pair
from tests.e2e.test_group import second_host
from tests.fakes.checked_http import checked_client
from tests.fakes.herma_process import herma_up
from tests.fakes.ports import free_ports
from tests.fakes.worker_process import worker_process

BOUND_S = 120.0

FILE = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "m"

[[workers]]
name = "head"
model = "builtin:herma-tiny"
serves = "m"
device = "cpu"
kv_tokens = 4096
max_seqs = 8
token_budget = 256
tensor_parallel = 2
group = "pair"
rank = 0
group_address = "tcp://{host}:{port}"
rendezvous = "{host}:{meeting}"
curve_secret_file = "{key}"
group_keys = {{ w = "{other}" }}
"""


@pytest.mark.slow
def test_an_engine_on_two_hosts_answers(tmp_path: Path) -> None:
    """Over HTTP; both supervisors say that their rank is ready."""
    port = free_ports(2)
    head_key, rank_key = (str(tmp_path / name) for name in ("head.key", "rank.key"))
    head_public, rank_public = write_curve_pair(head_key), write_curve_pair(rank_key)
    with second_host() as place:
        config = tmp_path / "herma.toml"
        text = FILE.format(
            folder=tmp_path,
            host=place.host,
            port=port,
            meeting=port + 1,
            key=head_key,
            other=rank_public,
        )
        config.write_text(text)
        keys: dict[str, Any] = {
            "engine": "native",
            "model": "builtin:herma-tiny",
            "device": "cpu",
            "kv_tokens": 4096,
            "token_budget": 256,
            "tensor_parallel": 2,
            "group": "pair",
            "rank": 1,
            "group_address": f"tcp://{place.host}:{port}",
            "rendezvous": f"{place.host}:{port + 1}",
            "curve_secret_file": rank_key,
            "group_server_key": head_public,
        }
        beside = tmp_path / "rank"
        beside.mkdir()
        with (
            worker_process(beside, "tcp://127.0.0.1:1", prefix=place.prefix, **keys) as rank,
            herma_up(config) as herma,
        ):
            herma.wait_models_ready({"m": 1})
            message = {"role": "user", "content": "Count to five."}
            body = {"model": "m", "messages": [message], "temperature": 0, "max_tokens": 12}
            with checked_client(herma.base_url, timeout_s=BOUND_S) as client:
                answer = client.post("/chat/completions", json=body).json()
            assert answer["usage"]["completion_tokens"] > 0
            assert any("ready: rank 1 of group pair" in line for line in rank.lines)
