"""What a configuration names: ports, model files, limits, settings of other engines."""

import json
import socket
from pathlib import Path

import pytest

from config import Config, LedgerConfig, parse_config
from herma.commands.doctor import ask_shared_limits
from herma.doctor import Finding, examine
from tests.herma.doctor.machine import Machine

HEAD = '[[models]]\nname = "m"\n[[workers]]\nname = "w"\nmodel = "/models/m"\n'


def config_of(more: str = "") -> Config:
    return parse_config(HEAD + more, Path("herma.toml"))


def whole(num_bytes: int = 8) -> bytes:
    """A safetensors file with one tensor."""
    header = json.dumps({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(num_bytes)


def plant_model(machine: Machine) -> None:
    for name in ("config.json", "tokenizer.json"):
        machine.write(f"/models/m/{name}", "{}")
    machine.write("/models/m/model.safetensors", whole())


def only(machine: Machine, more: str = "") -> Finding:
    (one,) = examine(machine.host, config_of(more))
    return one


def test_a_whole_model_is_no_finding(machine: Machine) -> None:
    plant_model(machine)
    assert examine(machine.host, config_of()) == []


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_missing_file(machine: Machine, name: str) -> None:
    plant_model(machine)
    (machine.root / "models/m" / name).unlink()
    again = '[[workers]]\nname = "second"\nmodel = "/models/m"\n'
    assert only(machine, again).what == f"/models/m/{name} does not exist"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (whole(4), "has 4 bytes of tensors where its header says 8"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"GGUF" + bytes(60), "GGUF file under another name"),
        (b"\0" * 4, "is no safetensors file"),
        ((5).to_bytes(8, "little") + b"{bad}", "a header that is no JSON"),
        ((2).to_bytes(8, "little") + b"[]", "a header that does not say where its tensors are"),
        ((8).to_bytes(8, "little") + b'{"t": 1}', "a header that does not say where its tensors"),
    ],
)
def test_a_file_of_weights_that_is_not_whole(machine: Machine, content: bytes, fault: str) -> None:
    plant_model(machine)
    machine.write("/models/m/model.safetensors", content)
    assert fault in only(machine).what


def test_a_drafter_that_is_not_whole(machine: Machine) -> None:
    """A drafter that is not whole is found. A drafter needs no tokenizer, and may be the model's
    own directory.
    """
    plant_model(machine)
    assert examine(machine.host, config_of('speculation = { drafter = "/models/m" }')) == []
    machine.write("/models/d/config.json", "{}")
    machine.write("/models/d/model.safetensors", b"version https://git-lfs.github.com/spec/v1\n")
    found = only(machine, 'speculation = { drafter = "/models/d" }')
    assert found.what.startswith("/models/d/model.safetensors is a pointer of git-lfs")


def test_a_link_that_leads_nowhere(machine: Machine) -> None:
    """A link that leads nowhere, as where the cache that it points to was cleared, breaks no check
    and no start.
    """
    plant_model(machine)
    (machine.root / "models/m/model.safetensors").unlink()
    machine.link("/models/m/model.safetensors", "/cache/gone")
    machine.write("/proc/self/cgroup", "0::/\n")
    machine.write("/sys/fs/cgroup/memory.max", "1000000")
    found = only(machine)
    assert found.what == "/models/m/model.safetensors cannot be read: No such file or directory"
    assert "correct its link" in found.remedy


def test_a_shard_that_is_missing(machine: Machine) -> None:
    plant_model(machine)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    machine.write("/models/m/model.safetensors.index.json", json.dumps(index))
    assert "model-2.safetensors is missing, but the index names it" in only(machine).what


def test_an_index_that_is_none(machine: Machine) -> None:
    plant_model(machine)
    machine.write("/models/m/model.safetensors.index.json", "[]")
    assert "is no index" in only(machine).what


def test_a_model_of_another_format(machine: Machine) -> None:
    plant_model(machine)
    (machine.root / "models/m/model.safetensors").rename(machine.root / "models/m/m.gguf")
    assert "llama-cpp" in only(machine).remedy
    (machine.root / "models/m/tokenizer.json").unlink()
    assert "llama-cpp" in only(machine).remedy


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("adapter_config.json", "holds an adapter for its base model, not a model"),
        ("pytorch_model.bin", "holds pytorch_model*.bin (PyTorch's pickles, which can run code)"),
        ("consolidated.safetensors", "holds consolidated* (Mistral's or Meta's own form)"),
        ("whole/config.json", "has no config.json, but whole in it has"),
    ],
)
def test_what_is_no_model_is_one_finding(machine: Machine, file: str, what: str) -> None:
    """What else such a directory lacks would not make it one."""
    machine.write(f"/models/m/{file}", "{}")
    if "adapter" in file:
        machine.write("/models/m/adapter_model.safetensors", whole())
    assert only(machine).what.removesuffix(" and no model.safetensors") == f"/models/m {what}"


def test_an_adapter_that_is_not_readable(machine: Machine) -> None:
    """Is a finding like any other."""
    machine.write("/models/m/adapter_config.json", "{")
    found = only(machine)
    assert "not readable" in found.what
    assert "fetch it again" in found.remedy


def test_a_container_smaller_than_the_weights(machine: Machine) -> None:
    plant_model(machine)
    machine.write("/proc/self/cgroup", "0::/\n")
    machine.write("/sys/fs/cgroup/memory.max", "50\n")
    assert "137" in only(machine).why


def test_a_slice_smaller_than_the_weights(machine: Machine) -> None:
    """A slice smaller than the weights is found: not the limit of the whole container counts, but
    that of a group within, which was not read.
    """
    plant_model(machine)
    machine.write("/proc/self/cgroup", "0::/herma.slice/herma-worker-w.service\n")
    machine.write("/sys/fs/cgroup/herma.slice/memory.max", "50\n")
    machine.write("/sys/fs/cgroup/herma.slice/herma-worker-w.service/memory.max", "max\n")
    assert "the control group herma.slice may take 50 B" in only(machine).what


LISTEN = "  sl  local_address rem_address st\n"


def test_a_port_of_another_program(machine: Machine) -> None:
    plant_model(machine)
    row = f"   0: 0100007F:{8080:04X} 00000000:0000 0A 0:0 00:0 0 0 0 4711 1\n"
    machine.write("/proc/net/tcp", LISTEN + row)
    assert only(machine).what == "port 8080 ([gateway] port) is taken by a process of another user"
    machine.write("/proc/33/comm", "postgres\n")
    machine.link("/proc/33/fd/3", "socket:[4711]")
    assert only(machine).what == "port 8080 ([gateway] port) is taken by postgres, process 33"
    machine.write("/proc/33/cmdline", "herma gateway\0")
    assert examine(machine.host, config_of()) == []


ENGINE = 'engine = "vllm"\nurl = "http://127.0.0.1:8001"\nlaunch = {{ argv = ["vllm", {}] }}\n'


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ('"--enforce-eager"', "--enforce-eager is set"),
        ('"--max-num-batched-tokens", "2048"', "--max-num-batched-tokens is 2048"),
        ('"--max-num-batched-tokens=2048"', "--max-num-batched-tokens is 2048"),
        ('"--speculative-config", "{method: mtp}"', "{method: mtp} is no JSON"),
        ('"--speculative-config={method: mtp}"', "{method: mtp} is no JSON"),
    ],
)
def test_arguments_that_cost_speed(machine: Machine, words: str, what: str) -> None:
    plant_model(machine)
    assert what in only(machine, ENGINE.format(words)).what


def test_arguments_that_are_right(machine: Machine) -> None:
    plant_model(machine)
    words = """"--max-num-batched-tokens", "16384", '{"method": "deepseek_mtp"}'"""
    assert examine(machine.host, config_of(ENGINE.format(words))) == []


@pytest.mark.parametrize(
    ("name", "value"), [("OMP_NUM_THREADS", "1"), ("VLLM_WORKER_MULTIPROC_METHOD", "fork")]
)
def test_variables_that_cost_speed(machine: Machine, name: str, value: str) -> None:
    plant_model(machine)
    text = ENGINE.format('"serve"').replace("] }", f'], env = {{ {name} = "{value}" }} }}')
    assert f"{name}={value}" in only(machine, text).what


def test_shared_limits_without_answer_or_secrecy(machine: Machine) -> None:
    """A private network is a reason to let a password pass in clear text, so that is a warning."""
    config = parse_config('[ledger]\nshared = "redis://10.0.0.5/0"\n', "x")
    assert examine(machine.host, config) == []
    machine.shared_limits = "the shared limits cannot be reached: ConnectionError"
    (silent,) = examine(machine.host, config)
    assert (silent.level, silent.what) == ("error", machine.shared_limits)
    machine.shared_limits = None
    text = '[ledger]\nshared = "redis://10.0.0.5/0"\nshared_password_env = "P"\n'
    (clear,) = examine(machine.host, parse_config(text, "x"))
    assert clear.level == "warning"
    assert clear.what.endswith("sends its password to 10.0.0.5 in clear text")


def test_the_server_of_shared_limits_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not there, and a password that is not."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"redis://127.0.0.1:{closed.getsockname()[1]}/0"
    assert "cannot be reached" in (ask_shared_limits(LedgerConfig(shared=url)) or "")
    monkeypatch.delenv("NO_SUCH_PASSWORD", raising=False)
    ledger = LedgerConfig(shared=url, shared_password_env="NO_SUCH_PASSWORD")
    assert "NO_SUCH_PASSWORD is not set" in (ask_shared_limits(ledger) or "")
