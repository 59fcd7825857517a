"""What of a host is examined before a start, and its ports: reserved, and taken."""

import socket
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from config import GatewayConfig, parse_config
from gateway.http.server.serving import listen
from herma.checks import (
    check_host,
    check_process_ports,
    claim_port,
    launch_problems,
    look_at_files,
)
from protocol.errors import ConfigError
from tests.fakes.ports import free_ports


async def test_a_claimed_port_is_open_to_sockets_that_share_it() -> None:
    """Several processes that set SO_REUSEPORT can listen there; others cannot."""
    with closing(claim_port(GatewayConfig(port=0))) as claim:
        port = claim.getsockname()[1]
        assert port != 0
        for _ in range(2):
            with (
                await listen("127.0.0.1", port, silent_peer_s=30, is_shared=True),
                await listen("127.0.0.1", port, silent_peer_s=30, is_shared=True),
            ):
                pass
        with pytest.raises(ConfigError, match="taken"):
            await listen("127.0.0.1", port, silent_peer_s=30)


async def test_a_port_that_others_share_is_taken() -> None:
    """A second `herma gateway --processes` would otherwise get half of the first one's clients."""
    with closing(claim_port(GatewayConfig(port=0))) as claim:
        port = claim.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} .* taken"):
            claim_port(GatewayConfig(port=port))
        with await listen("127.0.0.1", port, silent_peer_s=30, is_shared=True):
            claim.close()
            with pytest.raises(ConfigError, match="taken"):
                claim_port(GatewayConfig(port=port))
    claim_port(GatewayConfig(port=port)).close()


@pytest.mark.parametrize("host", ["203.0.113.1", "a" * 70])
def test_a_host_that_is_not_ours_is_one_line(host: str) -> None:
    """No process could listen there, so nothing starts."""
    with pytest.raises(ConfigError, match=r"correct \[gateway\] host"):
        claim_port(GatewayConfig(host=host, port=0))


@pytest.mark.parametrize("key", ["worker_bind", "process_port"])
def test_a_port_of_a_further_process_is_looked_at_too(key: str) -> None:
    """The second port is checked as the first one is; the error names the key."""
    port = free_ports(2)
    binds = {"worker_bind": f"tcp://127.0.0.1:{port}", "process_port": port}
    gateway = GatewayConfig(processes=2, worker_bind="ipc:///none")
    gateway = msgspec.structs.replace(gateway, **{key: binds[key]})
    with socket.create_server(("127.0.0.1", port + 1)):
        with pytest.raises(ConfigError, match=rf"port {port + 1} .*\[gateway\] {key}"):
            check_process_ports(gateway)
        check_process_ports(msgspec.structs.replace(gateway, processes=1))


def test_a_start_without_its_drafter_is_refused() -> None:
    """All workers of the file start on this host."""
    text = '[[workers]]\nname = "w"\nmodel = "builtin:herma-tiny"\nserves = "m"\n'
    config = parse_config(f'{text}speculation = {{ drafter = "/none" }}', "f")
    with pytest.raises(ConfigError, match=r"^worker `w`: .* drafter '/none' .* `speculation`$"):
        check_host(config, {})


def test_what_a_launched_engine_needs_is_looked_for(tmp_path: Path) -> None:
    """The programs, the directory and the key that a launched engine needs are looked for, each
    named with its key of the file.
    """
    table = """
    [[models]]
    name = "m"
    [[workers]]
    name = "w"
    model = "builtin:herma-tiny"
    engine = "vllm"
    url = "http://127.0.0.1:1"
    api_key_env = "NO_SUCH_KEY"
    launch = { argv = ["no-such-vllm"], stop = ["./stop.sh"], cwd = "%s" }
    """
    config = parse_config(table % tmp_path, "f")
    parts = ("NO_SUCH_KEY", "launch.argv[0] no-such-vllm", "launch.stop[0] ./stop.sh")
    problems = list(launch_problems(config, {"PATH": "/usr/bin:/bin"}))
    assert [part in text for part, text in zip(parts, problems, strict=True)] == [True] * 3
    (tmp_path / "stop.sh").write_text("#!/bin/sh\n")
    (tmp_path / "stop.sh").chmod(0o755)
    (tmp_path / "no-such-vllm").symlink_to("/bin/true")
    environ = {"PATH": str(tmp_path), "NO_SUCH_KEY": "k"}
    assert not list(launch_problems(config, environ))


def test_what_ends_a_start_is_a_note_of_the_file() -> None:
    """A worker's model may lie on another host; the port may be free there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = '[[workers]]\nname = "w"\nserves = "m"\nmodel = "/no/model"\n'
        config = parse_config(f"[gateway]\nport = {port}\n{worker}", "herma.toml")
        with pytest.raises(ConfigError, match=r"on this host .*; correct its `model`"):
            check_host(config, {})
        errors: list[ConfigError] = []
        notes = [note for note in look_at_files(config, {}, errors.append) if "worker `w`" in note]
    assert not errors
    assert len(notes) == 1
    assert "/no/model" in notes[0]
    assert "correct" not in notes[0]
