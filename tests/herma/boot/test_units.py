"""Units: what they say, what systemd thinks of them, and that the drill reads them back."""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import load_config, parse_config
from herma.boot import UnitOptions, enabling, read_units, unit_files
from herma.boot.units import quoted, worker_unit
from herma.cli import main
from protocol.errors import ConfigError

TEXT = """
[gateway]
port = 8080
drain_s = 30
[[models]]
name = "m"
[[workers]]
name = "gpu0"
model = "builtin:herma-tiny"
[[workers]]
name = "rack/1"
model = "builtin:herma-tiny"
engine = "vllm"
url = "http://127.0.0.1:1"
api_key_env = "ENGINE_KEY"
group = "big"
rank = 1
group_address = "tcp://127.0.0.1:8095"
insecure_local = true
launch = { argv = ["vllm"] }
drain_s = 120
"""
USER = pwd.getpwuid(os.geteuid())


def options(folder: Path, user: str | None = USER.pw_name) -> UnitOptions:
    return UnitOptions(sys.executable, folder / "a b%h.toml", user, folder, "/var/lib/state")


def written(folder: Path, user: str | None = USER.pw_name) -> dict[str, str]:
    units = unit_files(parse_config(TEXT, "herma.toml"), options(folder, user))
    for name, text in units.items():
        (folder / name).write_text(text)
    return units


def test_one_unit_for_the_gateway_and_each_worker_or_rank(tmp_path: Path) -> None:
    """The supervisor keeps crash loops; systemd keeps the time of a drain."""
    units = written(tmp_path)
    assert list(units)[:2] == ["herma-gateway.service", "herma-worker-gpu0.service"]
    rank = units[worker_unit("rack/1")]
    assert "Description=Herma worker rack/1 (rank 1 of big)" in rank
    assert "TimeoutStopSec=135" in rank
    assert "After=network-online.target herma-gateway.service" in rank
    for text in units.values():
        for line in ("Type=notify", "KillMode=mixed", "RestartPreventExitStatus=2"):
            assert f"\n{line}\n" in text
    only = unit_files(parse_config(TEXT, "herma.toml"), options(tmp_path), ["gpu0"])
    assert list(only) == ["herma-worker-gpu0.service"]
    assert "herma-gateway" not in only["herma-worker-gpu0.service"]


@pytest.mark.parametrize("user", [USER.pw_name, None])
def test_systemd_takes_them(tmp_path: Path, user: str | None) -> None:
    """systemd takes the units without a word, as system and as user units."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed here")
    names = [str(tmp_path / name) for name in written(tmp_path, user)]
    mode = [] if user else ["--user"]
    done = subprocess.run(
        ["systemd-analyze", *mode, "verify", "--man=no", *names],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    about_ours = [line for line in done.stderr.splitlines() if "herma" in line]
    assert about_ours == []
    assert done.returncode == 0, done.stderr


def test_the_drill_reads_them_back(tmp_path: Path) -> None:
    """The gateway first; the environment of a boot, with the file of secrets."""
    (tmp_path / "a b%h.env").write_text('# secrets\nENGINE_KEY="x y"\n')
    units = written(tmp_path)
    found = read_units(tmp_path, USER, "/run/user/1")
    assert [unit.name for unit in found] == sorted(units, key=lambda name: "gateway" not in name)
    gateway, worker, _ = found
    assert gateway.argv[:5] == (sys.executable, "-P", "-m", "herma", "gateway")
    assert worker.option("--name") == "gpu0"
    assert worker.option("--config") == str(tmp_path / "a b%h.toml")
    assert worker.environ["ENGINE_KEY"] == "x y"
    assert worker.environ["XDG_STATE_HOME"] == "/var/lib/state"
    assert worker.environ["HOME"] == USER.pw_dir
    assert "PYTHONPATH" not in worker.environ
    assert worker.folder == str(tmp_path)


@given(words=st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1)))
def test_any_word_survives_the_quoting(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    """Quotes, backslashes, percent and dollar signs."""
    folder = tmp_path_factory.mktemp("units")
    command = " ".join(quoted(word, is_command=True) for word in ["/bin/x", *words])
    (folder / "herma-x.service").write_text(f"[Service]\nExecStart={command}\n")
    (unit,) = read_units(folder, USER, None)
    assert unit.argv == ("/bin/x", *words)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[Service]\n", "has no ExecStart"),
        ("[Service]\nExecStart=/bin/x %h\n", "specifier"),
        ("[Service]\nExecStart=/bin/x 'a\n", "No closing quotation"),
        ("[Service]\nUser=somebody\nExecStart=/bin/x\n", "runs as somebody"),
        ("[Service]\nEnvironmentFile=/no/such\nExecStart=/bin/x\n", "/no/such"),
    ],
)
def test_a_unit_that_cannot_be_drilled_is_one_line(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=r"herma systemd"):
        read_units(tmp_path, USER, None)
    (tmp_path / "herma-x.service").write_text(text)
    with pytest.raises(ConfigError, match=part):
        read_units(tmp_path, USER, None)


def test_the_command_writes_and_says_what_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice: the second time nothing changes. Container files lie beside."""
    file = tmp_path / "herma.toml"
    file.write_text(TEXT)
    units = tmp_path / "units"
    words = ["systemd", "--config", str(file), "--user", "--output", str(units)]
    assert main([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert not units.exists()
    assert main(words) == 0
    written = [f"# {path}\n{path.read_text()}" for path in sorted(units.iterdir())]
    assert shown == "\n".join(written)
    out = capsys.readouterr().out
    removed = [line for line in out.splitlines() if line.endswith("# to undo it")]
    assert len(removed) == 1
    assert all(str(path) in removed[0] and path.name in removed[0] for path in units.iterdir())
    # systemd does not look into that folder for names.
    first = f"{units}/herma-gateway.service {units}/herma-worker-gpu0.service"
    assert f"systemctl --user enable --now {first}" in out
    assert f"set ENGINE_KEY in {tmp_path / 'herma.env'}" in out
    assert main(words) == 0
    assert capsys.readouterr().out.count("unchanged") == 3
    assert main([*words, "--worker", "nobody"]) == 2
    assert "named `nobody`" in capsys.readouterr().err

    assert main(["container", "--config", str(file), "--output", str(tmp_path / "c")]) == 0
    compose = load_compose(tmp_path / "c" / "compose.yaml")
    assert set(compose["services"]) == {
        "gateway",
        "herma-worker-gpu0",
        worker_unit("rack/1").removesuffix(".service"),
    }
    gpu0 = compose["services"]["herma-worker-gpu0"]
    assert gpu0["command"][:3] == ["worker", "--name", "gpu0"]
    assert "deploy" in gpu0
    assert "ENGINE_KEY" in gpu0["environment"]
    assert "--no-index" in (tmp_path / "c" / "Containerfile").read_text()
    assert main(["container"]) == 2
    assert load_config(file).gateway.port == 8080


def test_units_in_systemd_s_own_folder_are_enabled_by_name() -> None:
    *_, last = enabling(["herma-gateway.service"], is_user=False)
    assert last == "systemctl enable --now herma-gateway.service"


@pytest.mark.parametrize("command", ["systemd", "container"])
def test_files_that_were_edited_by_hand_are_not_overwritten(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If one file was edited by hand, no file of the call is written; files as Herma wrote them are
    replaced without a question.
    """
    file, folder = tmp_path / "herma.toml", tmp_path / "out"
    file.write_text(TEXT)
    words = [command, "--config", str(file), "--output", str(folder)]
    assert main(words) == 0
    first, *others = sorted(folder.iterdir())
    before = {path: path.read_text() for path in others}
    file.write_text(TEXT.replace("drain_s = 30", "drain_s = 31").replace("gpu0", "gpu1"))
    edited = first.read_text() + "# mine\n"
    first.write_text(edited)
    capsys.readouterr()
    assert main(words) == 2
    told = capsys.readouterr()
    assert str(first) in told.err
    assert "--force" in told.err
    assert told.err.count("\n") == 1
    assert (first.read_text(), told.out) == (edited, "")
    assert {path: path.read_text() for path in folder.iterdir() if path != first} == before
    assert main([*words, "--force"]) == 0
    assert "# mine" not in first.read_text()
    file.write_text(TEXT.replace("drain_s = 30", "drain_s = 32").replace("gpu0", "gpu2"))
    assert main(words) == 0


def test_units_of_another_file_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two fleets of one user have one folder of units, and workers may have the same names."""
    files = [tmp_path / name for name in ("a.toml", "b c.toml")]
    for file in files:
        file.write_text(TEXT)
    words = [["systemd", "--user", "--output", str(tmp_path), "--config", str(f)] for f in files]
    assert main(words[0]) == 0
    before = {path: path.read_text() for path in tmp_path.glob("*.service")}
    assert main(words[1]) == 2
    told = capsys.readouterr().err
    assert f"herma-gateway.service is of {files[0]}" in told
    assert told.count("\n") == 1
    assert {path: path.read_text() for path in tmp_path.glob("*.service")} == before
    assert main([*words[1], "--force"]) == 0
    assert main(words[1]) == 0
    assert main(words[0]) == 2
    assert str(files[1]) in capsys.readouterr().err


def test_a_unit_of_an_older_version_without_a_digest_is_herma_s_if_it_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another text may have been edited; so may one that is no text, or a masked unit."""
    file = tmp_path / "herma.toml"
    file.write_text(TEXT)
    words = ["systemd", "--config", str(file), "--output", str(tmp_path), "--worker", "gpu0"]
    assert main(words) == 0
    (unit,) = tmp_path.glob("*.service")
    _, _, old = (whole := unit.read_text()).partition("\n")
    unit.write_text(old)
    assert main(words) == 0
    assert unit.read_text() == whole
    for data in (old.encode() + b"#\n", b"\xff", b""):
        unit.write_bytes(data)
        assert main(words) == 2, data
        assert unit.read_bytes() == data
    assert main([*words, "--force"]) == 0
    assert unit.read_text() == whole
    assert capsys.readouterr().err.count("\n") == 3


def test_containers_have_what_the_file_names(tmp_path: Path) -> None:
    """Containers have what the file names at the host's paths: secrets and models to read; what is
    kept, and the sockets by which containers meet, to write.
    """
    file = tmp_path / "herma.toml"
    file.write_text("""
    [gateway]
    worker_bind = "ipc:///run/herma/workers"
    curve_secret_file = "gateway.key"
    tls_certificate_file = "/etc/herma/chain.pem"
    tls_key_file = "/etc/herma/key.pem"
    signing_key_file = "/var/keys/signing"
    [gateway.responses]
    path = "/var/ledger/responses.sqlite"
    [ledger]
    path = "/var/ledger/l.sqlite"
    [providers.p]
    base_url = "https://p.example/v1"
    api_key_file = "/run/secrets/p"
    [[models]]
    name = "m"
    [[workers]]
    name = "w"
    model = "./models/m"
    curve_secret_file = "w.key"
    curve_server_key = "f7g$Fq^+#kX1dG8.M(p{9z>2w&Ls/Ty3!bN0oQvU"
    speculation = { drafter = "/drafters/d" }
    [[workers]]
    name = "x"
    model = "Qwen/Qwen3-0.6B"
    gateways = ["tcp://127.0.0.1:8090"]
    insecure_local = true
    speculation = "auto"
    """)
    assert main(["container", "--config", str(file), "--output", str(tmp_path / "c")]) == 0
    services = load_compose(tmp_path / "c" / "compose.yaml")["services"]
    own = [f"{file}:/etc/herma/herma.toml:ro", "herma-state:/var/lib/herma"]

    def mounted(*names: str, mode: str = "") -> list[str]:
        return [f"{name}:{name}{mode}" for name in names]

    assert services["gateway"]["volumes"] == [
        *own,
        *mounted(f"{tmp_path}/gateway.key", "/etc/herma/chain.pem", mode=":ro"),
        *mounted("/etc/herma/key.pem", "/run/secrets/p", mode=":ro"),
        *mounted("/var/ledger", "/var/keys", "/run/herma"),
    ]
    assert services["herma-worker-w"]["volumes"] == [
        *own,
        *mounted(f"{tmp_path}/models/m", "/drafters/d", f"{tmp_path}/w.key", mode=":ro"),
        *mounted("/run/herma"),
    ]
    assert services["herma-worker-x"]["volumes"] == own
    text = (tmp_path / "c" / "Containerfile").read_text()
    assert "HERMA_RUNTIME_DIR=/run/herma-control" in text


def test_containers_meet_in_the_volume_of_their_state(tmp_path: Path) -> None:
    """Containers meet in the volume of their state, where the default address is; nothing of the
    host's own state is mounted.
    """
    file = tmp_path / "herma.toml"
    file.write_text(TEXT)
    assert main(["container", "--config", str(file), "--output", str(tmp_path / "c")]) == 0
    services = load_compose(tmp_path / "c" / "compose.yaml")["services"]
    own = [f"{file}:/etc/herma/herma.toml:ro", "herma-state:/var/lib/herma"]
    assert services["gateway"]["volumes"] == own
    assert services["herma-worker-gpu0"]["volumes"] == own


def load_compose(path: Path) -> dict[str, dict[str, dict[str, list[str]]]]:
    import json

    found: dict[str, dict[str, dict[str, list[str]]]] = json.loads(
        path.read_text().partition("\n")[2]  # behind the comment
    )
    return found
