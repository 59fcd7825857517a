"""Impossible addresses, ports and keys are refused before anything starts."""

import tempfile

import pytest

from config import Config, dials_made_keys, parse_config
from protocol.errors import ConfigError

KEY = "f7g$Fq^+#kX1dG8.M(p{9z>2w&Ls/Ty3!bN0oQvU"
WORKER = '[[workers]]\nname = "w"\nmodel = "/m"\nserves = "m"\n'


TCP = 'worker_bind = "tcp://127.0.0.1:8090"'


def check(text: str) -> Config:
    return parse_config(text, "x")


@pytest.mark.parametrize(
    "host", ["", "127.0.0.1:8080", "http://127.0.0.1", "two words", "*", "a\nb", "/run/herma"]
)
def test_a_host_that_is_none_is_not_called_public(host: str) -> None:
    """An error about missing keys would point to the wrong mistake."""
    written = host.replace("\n", "\\n")
    with pytest.raises(ConfigError, match=r'^x:2: \[gateway\] host ".*" is neither an IP'):
        check(f'[gateway]\nhost = "{written}"')


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost"])
def test_a_host_of_this_machine_alone_needs_no_keys(host: str) -> None:
    """However it is written."""
    assert check(f'[gateway]\nhost = "{host}"').gateway.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "gpu-1.example", "192.0.2.1"])
def test_a_public_host_is_called_so(host: str) -> None:
    """A host that takes keys is called public."""
    with pytest.raises(ConfigError, match=r"public.*herma keys new"):
        check(f'[gateway]\nhost = "{host}"')


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:18453", "http://127.0.0.1:18453", "tcp://127.0.0.1", "tcp://127.0.0.1:",
        "tcp://127.0.0.1:99999", "tcp://127.0.0.1:-1", "tcp://:8090", "ipc://", "",
        "tcp://127.0.0.1:8090x", f"tcp://127.0.0.1:{'9' * 5000}", "tcp://127.0.0.1:\u0663",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_told_how_one_is_written(address: str) -> None:
    """The errors of the gateway and of a worker say how an address is written, and do not call it
    public.
    """
    form = "write tcp://HOST:PORT or ipc://PATH"
    with pytest.raises(ConfigError, match=f"^x:2: .*worker_bind .* is not an address: {form}"):
        check(f'[gateway]\nworker_bind = "{address}"')
    with pytest.raises(ConfigError, match=f"^x:6: worker `w` cannot dial .*: {form}"):
        check(f'{WORKER}gateways = ["ipc:///a",\n"{address}"]')


@pytest.mark.parametrize("port", ["*", "0"])
def test_a_port_that_is_picked_is_no_address_to_dial(port: str) -> None:
    """The gateway alone may listen there; a worker of the same file needs another address."""
    gateway = f'[gateway]\nworker_bind = "tcp://127.0.0.1:{port}"\n'
    assert check(gateway)
    with pytest.raises(ConfigError, match=r"^x:3: worker `w` cannot dial"):
        check(gateway + WORKER)
    assert check(f'{gateway}{WORKER}gateways = ["tcp://127.0.0.1:8090"]')


def test_a_worker_that_dials_nobody_is_refused() -> None:
    """A worker that dials no gateway would wait for ever, so it is refused."""
    with pytest.raises(ConfigError, match=r"^x:5: worker `w` has an empty list"):
        check(f"{WORKER}gateways = []")


@pytest.mark.parametrize(
    ("keys", "both"),
    [
        (f"port = 8090\n{TCP}", "port and worker_bind are both port 8090"),
        ('port = 9000\nworker_bind = "tcp://0.0.0.0:9000"', "both port 9000"),
        (f"port = 8092\nprocesses = 3\n{TCP}", "port and worker_bind are both port 8092"),
        ("process_port = 8080", "port and process_port are both port 8080"),
        (f"process_port = 8091\nprocesses = 2\n{TCP}", "process_port and worker_bind are both"),
    ],
)
def test_two_cannot_listen_on_one_port(keys: str, both: str) -> None:
    """The second of them would call the first another program."""
    with pytest.raises(ConfigError, match=both):
        check(f'[gateway]\ncurve_secret_file = "k"\n{keys}')


@pytest.mark.parametrize(
    "keys",
    [
        'port = 0\nworker_bind = "tcp://127.0.0.1:0"',
        'port = 8080\nworker_bind = "tcp://127.0.0.2:8080"',
        'port = 8080\nworker_bind = "ipc:///run/8080"',
        f"port = 8089\nprocesses = 4\nprocess_port = 9000\n{TCP}",
        "port = 8090",
    ],
)
def test_ports_that_are_apart_are_taken(keys: str) -> None:
    """Any free port is never the other's; one port of two addresses is two."""
    assert check(f"[gateway]\n{keys}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'{WORKER}curve_server_key = "{KEY}"', "x:1: worker `w`: .* belong together"),
        (f'{WORKER}curve_secret_file = "k"', "x:1: worker `w`: .* belong together"),
        (
            f'{WORKER}curve_secret_file = "k"\ncurve_server_key = "short"',
            "x:6: worker `w`: curve_server_key must be the 40 characters that",
        ),
        (
            '[gateway]\ncurve_secret_file = "k"\ncurve_worker_keys = { a1 = "x" }',
            "x:3: .*curve_worker_keys: the key of `a1` must be the 40 characters that",
        ),
        (f'[gateway]\n[gateway.curve_worker_keys]\na1 = "{KEY}"', "x:2: .*need a curve_secret"),
        (f'{WORKER}gateways = ["tcp://far:1"]', "x:5: worker `w` dials tcp://far:1, where it need"),
        (
            f'[gateway]\n{TCP}\ncurve_secret_file = "k"\n{WORKER}',
            "x:4: worker `w` dials .*needs keys",
        ),
    ],
)
def test_keys_that_open_nothing_are_refused(text: str, says: str) -> None:
    """A worker without the right ones is turned down without a word, for ever."""
    with pytest.raises(ConfigError, match=f"^{says}"):
        check(text)


def test_keys_on_both_sides_are_taken() -> None:
    """Keys on both sides are taken as the README has them."""
    gateway = f'curve_secret_file = "g"\ncurve_worker_keys = {{ w = "{KEY}" }}\n'
    bind = '[gateway]\nworker_bind = "tcp://0.0.0.0:8090"\n'
    worker = f'{WORKER}curve_secret_file = "w"\ncurve_server_key = "{KEY}"\n'
    assert check(bind + gateway + worker)
    assert check(f'{worker}gateways = ["tcp://far:8090"]')


@pytest.mark.parametrize(
    ("gateway", "dialled"),
    [
        ("", "tcp://127.0.0.1:8090"),
        (f"[gateway]\n{TCP}", "tcp://127.0.0.1:8091"),
        (f"[gateway]\n{TCP}\nprocesses = 2", "tcp://[::1]:8092"),
        ("[gateway]\ninsecure_local = true", "tcp://far:8090"),
        ("[gateway]\ninsecure_local = true", "tcp://0.0.0.0:8090"),
    ],
)
def test_a_port_of_this_host_needs_keys_too(gateway: str, dialled: str) -> None:
    """Any user can listen on it; and what is on other hosts is never insecure."""
    with pytest.raises(ConfigError, match=r"worker `w` dials .*, where it needs keys"):
        check(f'{gateway}\n{WORKER}gateways = ["{dialled}"]')


@pytest.mark.parametrize(
    ("gateway", "dialled"),
    [
        (f"[gateway]\n{TCP}", "tcp://127.0.0.1:8090"),
        (f"[gateway]\n{TCP}", "tcp://localhost:8090"),
        (f"[gateway]\n{TCP}\nprocesses = 2", "tcp://[::1]:8091"),
        ("[gateway]\ninsecure_local = true", "tcp://127.0.0.1:9"),
    ],
)
def test_keys_for_the_own_gateway_are_made(gateway: str, dialled: str) -> None:
    """All its processes have one pair; without keys only on demand."""
    (worker,) = check(f'{gateway}\n{WORKER}gateways = ["{dialled}"]').workers
    assert dials_made_keys(worker) != worker.insecure_local


@pytest.mark.parametrize("more", ["", "insecure_local = true"])
def test_the_ranks_of_a_group_have_keys_on_one_host_too(more: str) -> None:
    """The ranks of a group have keys on one host too, unless the file says that all users of the
    host are trusted.
    """
    text = (
        f'{WORKER}engine = "vllm"\ngroup = "g"\nrank = 1\nlaunch = {{ argv = ["x"] }}\n'
        f'group_address = "tcp://127.0.0.1:8095"\n{more}'
    )
    if "insecure_local" in more:
        assert check(text)
    else:
        with pytest.raises(ConfigError, match=r"group_address .* is open to all users"):
            check(text)


def test_each_file_has_an_address_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file has an address of its own in the state directory, so that two fleets of one host
    never meet; if the path is too long for a socket, in the temporary directory.
    """
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    files = [parse_config(WORKER, source) for source in ("/a/herma.toml", "/b/herma.toml")]
    addresses = {one.gateway.worker_bind for one in files} | {Config().gateway.worker_bind}
    assert len(addresses) == 3
    assert all(one.startswith("ipc:///state/herma/workers-") for one in addresses)
    assert all(one.workers[0].gateways == (one.gateway.worker_bind,) for one in files)
    temporary = f"ipc://{tempfile.gettempdir()}/herma-"
    monkeypatch.setenv("XDG_STATE_HOME", "/state/" + 100 * "x")
    assert parse_config("", "/a/herma.toml").gateway.worker_bind.startswith(temporary)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME")
    assert parse_config("", "/a/herma.toml").gateway.worker_bind.startswith(temporary)


@pytest.mark.parametrize("key", ["tls_certificate_file", "tls_key_file"])
def test_a_certificate_and_its_key_come_together(key: str) -> None:
    with pytest.raises(ConfigError, match="needs `tls_"):
        parse_config(f'[gateway]\n{key} = "x.pem"\n[[models]]\nname = "m"', "herma.toml")


@pytest.mark.parametrize(
    "url",
    [
        "", "http://127.0.0.1", "redis://", "redis://:secret@127.0.0.1/0", "127.0.0.1:6379",
        "redis://h:0/0", "redis://h:70000/0", "redis://h:x/0", "redis://h/name", "redis://[::1",
        "redis://h/0?db=1", "redis://h/0#1", "unix:///run/redis",
    ],
)  # fmt: skip
def test_a_server_of_shared_limits_is_an_address_without_secrets(url: str) -> None:
    """A password in the file is not shown in the error either."""
    with pytest.raises(ConfigError, match=r"^x:2: \[ledger\] shared is redis://") as raised:
        check(f'[ledger]\nshared = "{url}"')
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("url", ["redis://h", "rediss://h:6380/15", "redis://[::1]:6379/0"])
def test_an_address_of_shared_limits_is_taken(url: str) -> None:
    """An address of shared limits is taken with or without a port and a database."""
    assert check(f'[ledger]\nshared = "{url}"').ledger.shared == url


def test_a_password_of_no_server_is_refused() -> None:
    """The limits would silently be those of one host."""
    with pytest.raises(ConfigError, match="shared_password_env is of `shared`"):
        check('[ledger]\nshared_password_env = "P"')


def test_a_path_that_no_socket_can_have_is_refused() -> None:
    """The longest path counts, that of the last process."""
    path = "ipc:///" + "x" * 104
    text = f'[gateway]\nprocesses = 3\nworker_bind = "{path}"\n'
    assert check(text).gateway.worker_bind == path
    with pytest.raises(ConfigError, match=r"^x:3: .*worker_bind: .* has 108 bytes; 107 are"):
        check(text.replace("processes = 3", "processes = 11"))
    with pytest.raises(ConfigError, match=r"^x:5: worker `w`: .* has 108 bytes; 107 are the limit"):
        check(f'{WORKER}gateways = ["{path}xxx"]')
