"""`herma config check` checks the files that a configuration names."""

import os
import tomllib
from argparse import Namespace
from pathlib import Path

import pytest

from gateway.store import LedgerStore
from herma.commands.config import run
from protocol.errors import ConfigError
from protocol.transport import write_curve_pair
from tests.fakes.certificates import Authority
from tests.fakes.text_files import make_text_files

HEAD = '[gateway]\nworker_bind = "ipc://{folder}/workers"\n[ledger]\npath = "{folder}/l.sqlite"\n'
MODEL = '[[models]]\nname = "m"\n'
WORKER = f"""{MODEL}
[[workers]]
name = "w"
model = "{{model}}"
"""
PROVIDER = '[providers.p]\nbase_url = "https://p.example/v1"\n'
PLACE = r"[^ ]*herma\.toml:\d+:"
RULE = '[[rules]]\nanswer = "yes"\n'


class Checked:
    """A folder with a configuration that is checked there."""

    def __init__(self, folder: Path, says: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._says = says

    def notes(self, text: str, **words: str) -> list[str]:
        """The notes of a successful check; it creates no file."""
        path = self.folder / "herma.toml"
        path.write_text(text.format(folder=self.folder, **{"model": "builtin:herma-tiny", **words}))
        before = sorted(self.folder.iterdir())
        assert run(Namespace(action="check", file=path, no_secrets=False)) == 0
        assert sorted(self.folder.iterdir()) == before
        said = self._says.readouterr().out
        assert f"{path}: ok\n" in said
        return [line[12:] for line in said.splitlines() if line.startswith("  note      ")]


@pytest.fixture
def checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checked:
    return Checked(tmp_path, capsys)


def test_existing_files_need_no_note(checked: Checked) -> None:
    """All files that can be named: a directory, a script, both ends of a link with keys."""
    gateway, worker = (write_curve_pair(checked.folder / name) for name in ("gateway.key", "w.key"))
    (checked.folder / "script.toml").write_text(RULE)
    keys = (
        '[gateway]\ncurve_secret_file = "{folder}/gateway.key"\n'
        f"curve_worker_keys = {{{{ w = '{worker}' }}}}\n"
    )
    text = HEAD.replace("[gateway]\n", keys) + WORKER
    text += 'engine = "scripted"\nscript = "{folder}/script.toml"\n'
    text += f"curve_secret_file = \"{{folder}}/w.key\"\ncurve_server_key = '{gateway}'\n"
    escaped = text.replace(worker, "{worker}").replace(gateway, "{gateway}")
    assert checked.notes(escaped, worker=worker, gateway=gateway) == []
    assert checked.notes(HEAD + WORKER, model=str(checked.folder)) == []
    assert checked.notes(HEAD + WORKER, model="Qwen/Qwen3-0.6B") == []


@pytest.mark.parametrize("model", ["/none", "models/none/here", "none", "~nobody-at-all/m"])
def test_a_missing_model_is_noted(checked: Checked, model: str) -> None:
    """A relative path too, and one in the home of an unknown user."""
    (note,) = checked.notes(HEAD + WORKER, model=model)
    assert note.startswith(f"worker `w`: on this host model '{model}' is neither a directory, ")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("tokenizer.json", None, "has tekken.json and no tokenizer.json"),
        ("tokenizer.json", b"{", "tokenizer.json is not readable JSON"),
        ("tokenizer.json", b"{}", "is not a tokenizer"),
        ("chat_template.jinja", b"{% if %}", "the chat template, line 1"),
        ("generation_config.json", b"[]", "generation_config.json holds no JSON object"),
    ],
)
def test_text_files_that_no_gateway_could_use_are_refused(
    checked: Checked, name: str, data: bytes | None, words: str
) -> None:
    """Otherwise the worker would get ready, and every request end in a 500."""
    files = {**make_text_files(), "config.json": b"{}", "tekken.json": b"{}"}
    del files[name]
    for each, content in (files | ({} if data is None else {name: data})).items():
        (checked.folder / each).write_bytes(content)
    with pytest.raises(ConfigError, match=f"worker `w`: .*{words}"):
        checked.notes(HEAD + WORKER, model=str(checked.folder))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("q4_k_m.gguf", "holds GGUF files and no safetensors: serve it with engine = "),
        ("adapter_config.json", "holds an adapter for base/m, not a model: merge both"),
        ("pytorch_model.bin", "holds pytorch_model"),
        ("inner/config.json", "has no config.json, but inner in it has: give "),
    ],
)
@pytest.mark.parametrize("has_texts", [False, True])
def test_weights_that_the_own_engine_does_not_read_are_refused(
    checked: Checked, name: str, words: str, *, has_texts: bool
) -> None:
    """The file was ok, and the worker did not start. llama.cpp may read them."""
    files = {name: b'{"base_model_name_or_path": "base/m"}'}
    if has_texts:
        config = {} if name.startswith("inner") else {"config.json": b"{}"}
        files |= make_text_files() | config
    for each, content in files.items():
        (checked.folder / each).parent.mkdir(exist_ok=True)
        (checked.folder / each).write_bytes(content)
    with pytest.raises(ConfigError, match=f"worker `w`: .* {words}"):
        checked.notes(HEAD + WORKER, model=str(checked.folder))
    foreign = 'engine = "llama-cpp"\nurl = "http://127.0.0.1:9"\n'
    if has_texts and name.endswith("gguf"):
        assert checked.notes(HEAD + WORKER + foreign, model=str(checked.folder)) == []


def test_what_a_template_cannot_show_is_noted(checked: Checked) -> None:
    """The check notes what a template cannot show, and a model whose answers no token ends."""
    files = {**make_text_files(), "config.json": b"{}"}
    files["generation_config.json"] = files["tokenizer_config.json"] = b"{}"
    for name, content in files.items():
        (checked.folder / name).write_bytes(content)
    (checked.folder / "chat_template.jinja").write_text("{{ functions + '' }}")
    ends, template = checked.notes(HEAD + WORKER, model=str(checked.folder))
    assert "answers end at their bound alone" in ends
    assert "it refuses every question: 'functions' is undefined" in template


@pytest.mark.parametrize("drafter", ["/none", "ngrm", "~nobody-at-all/m"])
def test_a_missing_drafter_is_refused_where_the_model_is(checked: Checked, drafter: str) -> None:
    """A missing drafter is refused on the host that has the model, which runs the worker. Where the
    model is elsewhere, its drafter may be there too.
    """
    text = f'{HEAD}{WORKER}speculation = {{{{ drafter = "{drafter}" }}}}'
    for model in (str(checked.folder), "builtin:herma-tiny"):
        with pytest.raises(ConfigError, match=f"worker `w`: on this host drafter '{drafter}' is "):
            checked.notes(text, model=model)
    assert len(checked.notes(text, model="/models/elsewhere")) == 2
    (note,) = checked.notes(text, model="Qwen/Qwen3-0.6B")
    assert "nor one of ngram, suffix, builtin:herma-tiny/mtp" in note


@pytest.mark.parametrize("drafter", ["suffix", "builtin:herma-tiny/mtp", "{folder}", "z-lab/draft"])
def test_a_drafter_that_can_be_is_taken(checked: Checked, drafter: str) -> None:
    """A drafter that can exist is taken: from earlier text, built in, a directory, an id of the
    hub.
    """
    text = f'{HEAD}{WORKER}speculation = {{{{ drafter = "{drafter}" }}}}'
    assert checked.notes(text) == []


def test_a_missing_directory_of_the_workers_socket_is_noted(checked: Checked) -> None:
    """A unit may make it; else the gateway would not start."""
    (note,) = checked.notes(HEAD.replace("{folder}/workers", "{folder}/none/workers") + WORKER)
    assert note.endswith(f"worker_bind: there is no directory {checked.folder}/none on this host")


def test_a_program_that_is_not_there_is_noted(checked: Checked) -> None:
    """An alert that cannot run is found before it is needed, and so is a switch of power."""
    alerts = '[[alerts]]\nname = "{name}"\ncommand = ["{program}"]\n'
    host = '[[hosts]]\nname = "h"\nworkers = ["w"]\npower = ["pdu-that-is-not", "cycle"]\n'
    good = alerts.format(name="good", program="sh")
    bad = alerts.format(name="bad", program="/none/alert.sh")
    assert checked.notes(HEAD + WORKER + good + bad + host) == [
        "alerts `bad`: command[0] /none/alert.sh is no program of this host",
        "host `h`: power[0] pdu-that-is-not is no program of this host",
    ]


def test_a_worker_is_summed_up_by_what_its_engine_heeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another engine plans its own steps."""
    path = tmp_path / "herma.toml"
    url = 'engine = "vllm"\nurl = "http://127.0.0.1:8000"\n'
    for more, summary in (
        ("max_seqs = 7", "max_seqs 7, token_budget 4096, gaps of 80 ms, context at most 131072"),
        (url, "vllm at http://127.0.0.1:8000, attached"),
        (f'{url}max_seqs = 7\nlaunch = {{ argv = ["sh"] }}', "8000, launched by sh, max_seqs 7"),
    ):
        path.write_text((HEAD + WORKER).format(folder=tmp_path, model="builtin:herma-tiny") + more)
        assert run(Namespace(action="check", file=path, no_secrets=False)) == 0
        assert f"{summary})\n" in capsys.readouterr().out
    model = f"{HEAD}{WORKER}".format(folder=tmp_path, model="/none")
    path.write_text(f'{model}speculation = "auto"')
    assert run(Namespace(action="check", file=path, no_secrets=False)) == 0
    assert ", drafts by an MTP head, else suffix)" in capsys.readouterr().out


def test_an_engine_without_weights_asks_no_hub(checked: Checked) -> None:
    """An engine without weights asks no hub, and takes a tokenizer from a directory."""
    (note,) = checked.notes(f'{HEAD}{WORKER}engine = "synthetic"', model="Qwen/Qwen3-0.6B")
    assert "no directory Qwen/Qwen3-0.6B" in note
    assert "synthetic engine" in note


def test_an_alias_whose_requests_would_all_fail_is_refused(checked: Checked) -> None:
    """The operator set the field; clients would search the mistake in their requests."""
    text = HEAD + MODEL + 'aliases = ["quick"]\n[models.alias_params.quick]\nset = {{ {fields} }}'
    assert checked.notes(text, fields="temperature = 0.2")
    with pytest.raises(
        ConfigError, match=r"alias_params\.quick\.set\.temperature: expected `float`"
    ):
        checked.notes(text, fields='temperature = "hot"')


def test_a_script_is_read_where_it_is(checked: Checked) -> None:
    """A missing one may be on the worker's host; a wrong one is wrong everywhere."""
    text = HEAD + WORKER + 'engine = "scripted"\nscript = "{folder}/script.toml"'
    (note,) = checked.notes(text)
    assert note == f"worker `w`: there is no script {checked.folder}/script.toml on this host"
    (checked.folder / "script.toml").write_text(RULE.replace("answer", "answr"))
    with pytest.raises(ConfigError, match=r"script\.toml: rule 1: unknown key `answr`"):
        checked.notes(text)


def test_the_gateways_keys_are_read(checked: Checked) -> None:
    """The gateway's key files are read: it does not start without them, or with a file that others
    can read.
    """
    text = HEAD.replace("[gateway]\n", '[gateway]\ncurve_secret_file = "{folder}/gateway.key"\n')
    with pytest.raises(ConfigError, match=r"curve_secret_file: cannot read .*gateway\.key"):
        checked.notes(text + PROVIDER)
    write_curve_pair(checked.folder / "gateway.key")
    notes = checked.notes(
        text + WORKER.replace("[[workers]]", "[[models]]").replace("model =", "#")
    )
    assert any("no worker can connect" in note for note in notes)
    (checked.folder / "gateway.key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        checked.notes(text)


def test_the_certificate_is_read(checked: Checked) -> None:
    """The gateway would refuse to start without it, or with the key of another one."""
    files = 'tls_certificate_file = "{folder}/own.pem"\ntls_key_file = "{folder}/own.key"\n'
    text = HEAD.replace("[gateway]\n", f"[gateway]\n{files}")
    with pytest.raises(ConfigError, match=r"tls_certificate_file.*own\.pem"):
        checked.notes(text)
    Authority(checked.folder).issue(checked.folder / "own.pem", checked.folder / "own.key")
    checked.notes(text)


def test_the_signing_key_is_read(checked: Checked) -> None:
    """The signing key is read. It may be missing, because the first start makes it; a wrong one
    stops every start.
    """
    text = HEAD.replace("[gateway]\n", '[gateway]\nsigning_key_file = "{folder}/signing.key"\n')
    checked.notes(text)
    path = checked.folder / "signing.key"
    path.write_bytes(bytes(31))
    with pytest.raises(
        ConfigError, match=rf"^{PLACE} \[gateway\] signing_key_file: .* has 31 bytes"
    ):
        checked.notes(text)
    path.write_bytes(bytes(32))
    checked.notes(text)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match=r"signing_key_file .* is a directory"):
        checked.notes(text)


def test_the_place_of_stored_responses_is_looked_at(checked: Checked) -> None:
    """The place of stored responses is looked at, if the file names one."""
    text = HEAD.replace("[gateway]\n", '[gateway]\nresponses.path = "{folder}"\n')
    with pytest.raises(
        ConfigError, match=rf"^{PLACE} \[gateway.responses\] path .* is a directory"
    ):
        checked.notes(text)


def test_a_workers_keys_are_read_where_they_are(checked: Checked) -> None:
    """A worker's keys are read where they are, as its script is."""
    public = write_curve_pair(checked.folder / "gateway.key")
    text = HEAD + WORKER + "curve_secret_file = \"{folder}/w.key\"\ncurve_server_key = '{public}'"
    (note,) = checked.notes(text, public=public)
    assert note == f"worker `w`: there is no curve_secret_file {checked.folder}/w.key on this host"
    (checked.folder / "w.key").touch(0o600)
    with pytest.raises(ConfigError, match=rf"^{PLACE} worker `w`: .*w\.key is not a key file"):
        checked.notes(text, public=public)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("{folder}", "is a directory; name a file in it"),
        ("", "is a directory; name a file in it"),
        ("{folder}/file/l.sqlite", "{folder}/file is a file, not a directory"),
        ("~nobody-at-all/l.sqlite", "cannot be read"),
    ],
)
def test_an_impossible_ledger_is_reported(checked: Checked, path: str, says: str) -> None:
    """An error where providers cost money, a note where the gateway serves without it."""
    (checked.folder / "file").write_text("")
    text = HEAD.replace("{folder}/l.sqlite", path)
    says = says.format(folder=checked.folder)
    with pytest.raises(ConfigError, match=rf"^{PLACE} \[ledger\] path .*{says}"):
        checked.notes(text + PROVIDER)
    (note,) = checked.notes(text + WORKER)
    assert says in note
    assert note.endswith("and records no usage")


def test_what_is_in_the_files_of_a_gateway_is_looked_at(checked: Checked) -> None:
    """A start would find them broken, or of another currency."""
    LedgerStore(checked.folder / "l.sqlite", "EUR").close()
    text = HEAD + PROVIDER
    with pytest.raises(ConfigError, match=r"counts in EUR, but \[ledger\] currency is USD"):
        checked.notes(text)
    (note,) = checked.notes(HEAD + WORKER)
    assert "counts in EUR" in note
    (checked.folder / "l.sqlite").unlink()
    (checked.folder / "responses.sqlite").write_text("no database, but as long as one" * 20)
    note, _ = checked.notes(text)
    assert "responses.sqlite: file is not a database; restore" in note
    named = text.replace(
        "[ledger]", '[gateway.responses]\npath = "{folder}/responses.sqlite"\n[ledger]'
    )
    with pytest.raises(ConfigError, match=r"responses\.sqlite: file is not a database; restore"):
        checked.notes(named)


def test_the_ledger_of_the_environment_is_looked_at_too(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger that the environment names is examined too; neither it nor its directory is
    made.
    """
    monkeypatch.setitem(os.environ, "XDG_STATE_HOME", str(checked.folder / "state"))
    head = HEAD.partition("[ledger]")[0]
    assert checked.notes(head + WORKER) == []
    (checked.folder / "state").write_text("")
    with pytest.raises(ConfigError, match="state is a file, not a directory"):
        checked.notes(head + PROVIDER)


SHARED = 'shared = "{url}"\nshared_password_env = "LIMITS_PASSWORD"\n'


def test_the_server_of_shared_limits_is_looked_at(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of the shared limits' server needs its password, which should not pass to another
    host in clear text. The server itself is not asked, because it may be out of reach from here.
    """
    with pytest.raises(ConfigError, match=r"\[ledger\] shared: .* LIMITS_PASSWORD is not set"):
        checked.notes(HEAD + SHARED + WORKER, url="redis://127.0.0.1:1/0")
    monkeypatch.setenv("LIMITS_PASSWORD", "secret")
    assert checked.notes(HEAD + SHARED + WORKER, url="redis://127.0.0.1:1/0") == []
    assert checked.notes(HEAD + SHARED + WORKER, url="rediss://limits.example/0") == []
    (note,) = checked.notes(HEAD + SHARED + WORKER, url="redis://limits.example/0")
    assert "sends its password to limits.example in clear text" in note


def test_shared_limits_need_their_client(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared limits need their client in the check, as the gateway does at its start."""
    monkeypatch.setattr("herma.checks.files.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"herma\[redis\]"):
        checked.notes(HEAD + 'shared = "redis://127.0.0.1/0"\n' + WORKER)


def test_every_mistake_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "herma.toml"
    path.write_text("[gateway]\nprot = 1\ndrain_s = true\n")
    assert run(Namespace(action="check", file=path, no_secrets=False)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].partition(": ")[0] for line in lines] == [
        f"{path}:2",
        f"{path}:3",
    ]


def test_a_host_without_the_secrets_can_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_HERE", raising=False)
    path = tmp_path / "herma.toml"
    path.write_text(f'{PROVIDER}api_key_env = "NOT_HERE"\n')
    with pytest.raises(ConfigError, match="NOT_HERE"):
        run(Namespace(action="check", file=path, no_secrets=False))
    assert run(Namespace(action="check", file=path, no_secrets=True)) == 0


def test_values_are_shown_with_their_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "herma.toml"
    path.write_text(
        '[gateway]\nport = 9000\n[[models]]\nname = "m"\nprofile = "latency"\n'
        '[[workers]]\nname = "w"\nmodel = "builtin:herma-tiny"\nmax_gap_ms = 7\n'
        f'[[keys]]\nname = "k"\nhash = "sha256:{"0" * 64}"\n'
    )
    assert run(Namespace(action="show", file=path, no_secrets=False)) == 0
    out = capsys.readouterr().out
    assert f"port = 9000  # {path}:2" in out
    assert 'host = "127.0.0.1"  # default' in out
    assert f"max_gap_ms = 7.0  # {path}:9" in out
    assert "# profile latency" in out
    assert "0" * 64 not in out
    shown = tomllib.loads(out)
    assert shown["workers"][0]["serves"] == "m"


def test_all_mistakes_of_this_host_are_named_with_their_lines(tmp_path: Path) -> None:
    """A missing secret hides no other, nor a file that cannot be read."""
    text = """\
[gateway]
worker_bind = "ipc://{folder}/workers"
tls_certificate_file = "{folder}/none.pem"
tls_key_file = "{folder}/none.key"
[ledger]
path = "{folder}"
[[models]]
name = "m"
[[workers]]
name = "w"
model = "builtin:herma-tiny"
engine = "scripted"
script = "{folder}/bad.toml"
[[workers]]
name = "v"
model = "builtin:herma-tiny"
engine = "scripted"
script = "{folder}/bad.toml"
[providers.p]
base_url = "https://p.example/v1"
api_key_env = "NO_SUCH_KEY"
[providers.q]
base_url = "https://q.example/v1"
api_key_file = "{folder}/none.secret"
"""
    path = tmp_path / "herma.toml"
    path.write_text(text.format(folder=tmp_path))
    (tmp_path / "bad.toml").write_text("[[rules]]\nanswr = 1\n")
    with pytest.raises(ConfigError) as error:
        run(Namespace(action="check", file=path, no_secrets=False))
    said = [line.removeprefix(str(path)) for line in str(error.value).splitlines()]
    begins = (
        ":19: provider `p`: the environment",
        ":22: provider `q`: cannot read",
        ":3: [gateway] tls_certificate_file",
        ":6: [ledger] path",
        f": {tmp_path}/bad.toml: rule 1: unknown key `answr`",
    )
    assert len(said) == len(begins)
    for line, begin in zip(said, begins, strict=True):
        assert line.startswith(begin)
