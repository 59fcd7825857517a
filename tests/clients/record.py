"""Records the shapes of real clients' requests, a turn of `NUM_CALLS` calls of a tool each.

    make test-clients
    python -m tests.clients.record ~/.cache/herma-clients codex claude opencode pi ...

The engine is scripted: it asks for another note until all are read.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.clients.catalogue import Call, Client, all_clients
from tests.clients.recording_proxy import Asked, recording_proxy
from tests.clients.shapes import Neutral, Shape, write
from tests.clients.turns import NOTE, ClientHome, request_of, scripted_gateway, written

NUM_CALLS: Final = 21
KEPT_HEADERS: Final = ("user-agent", "anthropic-version", "anthropic-beta", "content-type")


def rules(client: Client) -> list[dict[str, Any]]:
    """A call for each note, then the last words. Prompts without tools are titles."""
    assert client.call is not None
    asked = request_of(client)
    steps = []
    for number in range(NUM_CALLS, -1, -1):
        read = rf"(?s)\A.*?<tools>.*{asked}" if number == 0 else rf"(?s)\A(?>.*?{NOTE}){{{number}}}"
        call = numbered(client.call, number)
        answer = "It is done." if number == NUM_CALLS else written(call)
        steps.append({"matches": read, "where": "prompt", "answer": answer})
    return [*steps, {"answer": "Nothing to do."}]


def numbered(call: Call, number: int) -> Call:
    """The call of another note: clients stop at the same one again and again."""
    text = json.dumps(call.arguments)
    for old, new in (("note.txt", f"note{number}.txt"), ('"note"', f'"note{number}"')):
        text = text.replace(old, new)
    return Call(call.name, json.loads(text))


def record(environments: Path, client: Client) -> int:
    """One turn; returns how many requests are kept."""
    with (
        TemporaryDirectory() as folder,
        TemporaryDirectory(ignore_cleanup_errors=True) as home,
        scripted_gateway(Path(folder), rules=rules(client)) as herma,
        recording_proxy(herma.root_url) as proxy,
    ):
        place = ClientHome(environments, client, Path(home), proxy.root_url)
        for number in range(NUM_CALLS):
            (place.work / f"note{number}.txt").write_text(f"{NOTE}\n")
        done = place.run(request_of(client))
        neutral = Neutral((NOTE, request_of(client)))
        shapes = [_shape(one, neutral) for one in proxy.turns()]
    if len(shapes) < NUM_CALLS:
        print(f"{client.name}: {done.status} {done.output[-500:]} {done.errors[-500:]}")
    write(client.name, shapes)
    return len(shapes)


def _shape(asked: Asked, neutral: Neutral) -> Shape:
    headers = {name: asked.headers[name] for name in KEPT_HEADERS if name in asked.headers}
    # Behind the program's name and version stands the machine's system.
    headers = {**headers, "user-agent": headers.get("user-agent", "none").partition(" ")[0]}
    return Shape(asked.path, headers, neutral.of(asked.json))


def main(environments: Path, names: Sequence[str]) -> None:
    """Record the named clients."""
    for client in all_clients():
        if client.name in names:
            print(f"{client.name}: {record(environments, client)} requests", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
