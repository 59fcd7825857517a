"""One turn of a client from clients.toml against a gateway: its home directory, its prompt and the
outcome.

Owns the client's surroundings and the engine's script. Must not judge what it sees.

    python -m tests.clients.turns FOLDER NAME ...

shows turns: the output, each request, the names of the tools.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.clients.catalogue import Call, Client, all_clients
from tests.clients.install import is_installed, node_bin
from tests.clients.recording_proxy import RecordingProxy, recording_proxy
from tests.fakes.herma_process import HermaProcess, herma_up

BOUND_S: Final = 240.0
CLOSED: Final = "http://127.0.0.1:9"
"""A proxy that nobody serves: what is not on loopback cannot be reached."""

MODEL: Final = "alpha"
NOTE: Final = "The note says 4711."
HERE: Final = Path(__file__).parent

FLEET: Final = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "alpha"
aliases = ["claude-*"]

[[workers]]
name = "a"
model = "builtin:herma-tiny"
serves = "alpha"
engine = "scripted"
script = "{script}"
"""


def request_of(client: Client) -> str:
    """What the user asks, by which the engine knows the client."""
    return f"Please do the check of {client.name} now"


def script(clients: Sequence[Client]) -> dict[str, Any]:
    """The engine's rules: a call, then the end of the turn; requests without tools are titles and
    the like.
    """
    rules: list[dict[str, Any]] = []
    for client in clients:
        asked = request_of(client)
        again, first = f"(?s){asked}.*{NOTE}", f"(?s)<tools>.*{asked}"
        if client.call is not None:
            rules += [*last_rules(client, again), *call_rules(client.call, first)]
        else:
            answer = client.answer or "It is done."
            rules.append({"contains": asked, "where": "prompt", "answer": answer})
    return {"rules": [*rules, {"answer": "Nothing to do."}]}


def last_rules(client: Client, prompt: str) -> list[dict[str, Any]]:
    """What ends the turn of a client behind a prompt of that pattern."""
    if client.last is not None:
        return call_rules(client.last, prompt)
    return [{"matches": prompt, "where": "prompt", "answer": "It is done."}]


def call_rules(call: Call, prompt: str) -> list[dict[str, Any]]:
    """The call in the words of the built-in model, behind a prompt of that pattern. The prompt has
    its beginning where the client demands a call.
    """
    text = json.dumps({"name": call.name, "arguments": call.arguments})
    rest = text.removeprefix(_BEGUN)
    begun = prompt + r".*" + re.escape(_BEGUN) + r"\Z"
    return [
        {"matches": begun, "where": "prompt", "answer": f"{rest}\n</tool_call>"},
        {
            "matches": prompt,
            "where": "prompt",
            "answer": f"\n<tool_call>\n{text}\n</tool_call>",
        },
    ]


_BEGUN: Final = '{"name":'


@contextmanager
def scripted_gateway(
    folder: Path, *, rules: Sequence[dict[str, Any]] | None = None
) -> Iterator[HermaProcess]:
    """A gateway without keys whose model answers by `rules`, by default those of the table."""
    path = folder / "script.json"
    path.write_text(json.dumps({"rules": rules} if rules else script(all_clients())))
    config = folder / "herma.toml"
    config.write_text(FLEET.format(folder=folder, script=path))
    with herma_up(config) as herma:
        herma.wait_models_ready({MODEL: 1})
        yield herma


@dataclass(frozen=True)
class Done:
    """How the client's process ended. `status` is None if it was still running at the bound."""

    status: int | None
    output: str
    errors: str


class ClientHome:
    """An empty home with a project in it, and the client's files and variables for `root_url`."""

    def __init__(
        self, environments: Path, client: Client, home: Path, root_url: str, model: str = MODEL
    ) -> None:
        place = environments / client.name
        bins = place / ("node_modules/.bin" if client.kind == "npm" else "bin")
        self._client = client
        self._home = home
        self._words = {
            "bin": str(bins),
            "root": root_url,
            "url": f"{root_url}/v1",
            "home": str(home),
            "here": str(HERE),
            "place": str(place),
            "model": model,
        }
        self.work = home / "work"
        self.work.mkdir()
        (self.work / "note.txt").write_text(f"{NOTE}\n")
        for name, text in client.files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._filled(text))
        self._environ = {
            "PATH": os.pathsep.join(
                (str(node_bin(environments)), str(bins), "/usr/local/bin", "/usr/bin", "/bin")
            ),
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "HTTPS_PROXY": CLOSED,
            "HTTP_PROXY": CLOSED,
            "NO_PROXY": "127.0.0.1,localhost",
            **{name: self._filled(value) for name, value in client.environ.items()},
        }

    def run(self, prompt: str, bound_s: float = BOUND_S) -> Done:
        """The client's turn, behind what comes before it."""
        for words in self._client.before:
            self._run([self._filled(word) for word in words], bound_s)
        argv = [self._filled(word).replace("{prompt}", prompt) for word in self._client.argv]
        return self._run(argv, bound_s)

    def _run(self, argv: list[str], bound_s: float) -> Done:
        with subprocess.Popen(
            argv,
            cwd=self.work,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=bound_s)
                return Done(process.returncode, output, errors)
            except subprocess.TimeoutExpired:
                self._kill_all()
                output, errors = process.communicate()
                return Done(None, output, errors)
            finally:
                self._kill_all()

    def _kill_all(self) -> None:
        """End what runs in this home: some clients leave servers of their own behind."""
        mark = f"HOME={self._home}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has gone, or belongs to another user

    def _filled(self, text: str) -> str:
        for name, value in self._words.items():
            text = text.replace("{" + name + "}", value)
        return text


def run_turn(environments: Path, client: Client, home: Path, proxy: RecordingProxy) -> Done:
    """The turn of the table."""
    return ClientHome(environments, client, home, proxy.root_url).run(request_of(client))


def _show(done: Done, proxy: RecordingProxy) -> None:
    print(f"status {done.status}")
    print(f"--- output\n{done.output[-2000:]}\n--- errors\n{done.errors[-2000:]}")
    for one in proxy.asked:
        body = one.json or {}
        tools = [
            tool.get("name") or tool.get("function", {}).get("name") or tool.get("type")
            for tool in body.get("tools") or ()
        ]
        print(
            f"{one.method} {one.path} {one.status} whole={one.is_whole}",
            f"{len(one.body)} bytes, tools={tools}",
        )
        if one.status >= 400:
            print(one.answer.decode(errors="replace")[:500])


def main(folder: Path, names: Sequence[str]) -> None:
    """Show the turns of the named clients."""
    clients = [one for one in all_clients() if one.name in names]
    with TemporaryDirectory() as place, scripted_gateway(Path(place)) as herma:
        for client in clients:
            if not is_installed(folder, client):
                print(f"===== {client.name}: not installed")
                continue
            with TemporaryDirectory() as home, recording_proxy(herma.root_url) as proxy:
                print(f"===== {client.name}")
                _show(run_turn(folder, client, Path(home), proxy), proxy)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
