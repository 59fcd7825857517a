"""What a host looks like before a rank starts on it, from a planted /sys and /proc."""

import socket
from pathlib import Path

import pytest

from config import LaunchConfig, WorkerConfig
from workers.ipc import LinkFacts
from workers.supervisor.host_facts import engine_ports, host_facts, link_names


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _config(rank: int, port: int, *words: str, **env: str) -> WorkerConfig:
    return WorkerConfig(
        name="w",
        model="/m",
        serves="m",
        gateways=(),
        token_budget=1024,
        engine="vllm",
        url=f"http://127.0.0.1:{port}",
        launch=LaunchConfig(argv=("vllm", "serve", *words), env=env),
        group="g",
        rank=rank,
        group_address="tcp://127.0.0.1:8095",
    )


def test_links_of_the_environment_and_the_driver(tmp_path: Path) -> None:
    """A link without a carrier, and one that is not there, are down; RoCE devices have a state."""
    _write(tmp_path / "sys/class/net/enp1s0f0/carrier", "1\n")
    _write(tmp_path / "sys/class/net/enp1s0f0/mtu", "9000\n")
    _write(tmp_path / "sys/class/infiniband/rocep1s0f0/ports/1/state", "4: ACTIVE\n")
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.142  Release Build"
    _write(tmp_path / "proc/driver/nvidia/version", version)
    environ = {
        "NCCL_SOCKET_IFNAME": "=enp1s0f0,enp9",
        "GLOO_SOCKET_IFNAME": "enp1s0f0",
        "NCCL_IB_HCA": "rocep1s0f0:1",
    }
    facts = host_facts(_config(1, 1, **environ), tmp_path)
    assert facts.driver == "580.142"
    assert facts.links == {
        "enp1s0f0": LinkFacts(True, 9000),
        "enp9": LinkFacts(False, 0),
        "rocep1s0f0": LinkFacts(True),
    }
    assert link_names({"NCCL_SOCKET_IFNAME": "^docker,lo"}, ["NCCL_SOCKET_IFNAME"]) == []


def test_ports_must_be_free_on_the_head_alone(tmp_path: Path) -> None:
    """The ports of the API and of the ranks' meeting must be free on the head alone."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["--master-port", str(port)]
        assert host_facts(_config(0, 1, *words), tmp_path).taken_ports == (port,)
        assert host_facts(_config(1, 1, *words), tmp_path).taken_ports == ()


@pytest.mark.parametrize(
    ("words", "ports"),
    [
        (["--master-port", "29501", "--port", "8000"], [29501]),
        (["--master-port=29501"], [29501]),
        (["--dist-init-addr", "10.0.0.1:5000"], [5000]),
        (["--master-port"], []),
    ],
)
def test_the_ports_of_a_command_line(words: list[str], ports: list[int]) -> None:
    """vLLM's and SGLang's flags."""
    assert list(engine_ports(words)) == ports


def test_ranks_of_our_own_engine_have_no_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links are those of the worker's environment, the port is that of the rendezvous."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = WorkerConfig(
            "w", "m", "m", (), 1, tensor_parallel=2, group="g",
            group_address="tcp://10.0.0.1:8095", rendezvous=f"127.0.0.1:{port}",
        )  # fmt: skip
        facts = host_facts(config, tmp_path)
    assert list(facts.links) == ["eth7"]
    assert facts.taken_ports == (port,)
