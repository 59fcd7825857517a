"""Records the shapes of real clients' requests, a turn of `NUM_CALLS` calls of a tool each.

    make test-clients
    python -m tests.clients.record ~/.cache/herma-clients codex claude opencode pi ...

The engine is scripted: it asks for another note until all are read. Of a client that can begin
subagents, the requests of one that does are kept beside, in shapes/children.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.clients.catalogue import Call, Client, all_clients
from tests.clients.recording_proxy import Asked, recording_proxy
from tests.clients.shapes import Neutral, Shape, write
from tests.clients.turns import (
    NOTE,
    ClientHome,
    call_rules,
    last_rules,
    request_of,
    scripted_gateway,
)

NUM_CALLS: Final = 21
BOUND_S: Final = 500.0
KEPT_HEADERS: Final = ("user-agent", "anthropic-version", "anthropic-beta", "content-type")
SESSION_HEADER: Final = re.compile(
    r".*(session|thread|agent|affinity|correlation|parent|request)[_-]?(id|key)?"
)
"""What may name a conversation; the ids in it are replaced."""

CHILD: Final = "Do the part of the child now"
CHILD_DONE: Final = "The part of the child is done."


def rules(client: Client) -> list[dict[str, Any]]:
    """A call for each note, then the last words. Prompts without tools are titles."""
    assert client.call is not None
    asked = request_of(client)
    steps = last_rules(client, rf"(?s)\A(?>.*?{NOTE}){{{NUM_CALLS}}}")
    for number in range(NUM_CALLS - 1, -1, -1):
        read = rf"(?s)\A.*?<tools>.*{asked}" if number == 0 else rf"(?s)\A(?>.*?{NOTE}){{{number}}}"
        steps += call_rules(numbered(client.call, number), read)
    return [*steps, {"answer": "Nothing to do."}]


def numbered(call: Call, number: int) -> Call:
    """The call of another note: clients stop at the same one again and again."""
    text = json.dumps(call.arguments)
    for old, new in (("note.txt", f"note{number}.txt"), ('"note"', f'"note{number}"')):
        text = text.replace(old, new)
    return Call(call.name, json.loads(text))


def rules_of_child(client: Client) -> list[dict[str, Any]]:
    """The agent calls its tools in `client.child`, one after the other, the first of which begins a
    subagent; that reads a note.
    """
    assert client.call is not None
    asked = request_of(client)
    read = rf"(?s)<tools>.*?{asked}"
    num_calls = len(client.child)
    steps = last_rules(client, rf"{read}(?>.*?<tool_response>){{{num_calls}}}")
    for number in range(num_calls - 1, -1, -1):
        before = rf"{read}(?>.*?<tool_response>){{{number}}}"
        steps += call_rules(client.child[number], before)
    child = [
        {"matches": f"(?s){CHILD}.*{NOTE}", "where": "prompt", "answer": CHILD_DONE},
        *call_rules(client.call, f"(?s){CHILD}"),
    ]
    return [*steps, *child, {"answer": "Nothing to do."}]


def record(environments: Path, client: Client) -> str:
    """One turn, and one with a subagent; returns what is kept."""
    shapes = _recorded(environments, client, rules(client))
    write(client.name, shapes)
    said = f"{len(shapes)} requests"
    if client.child:
        shapes = _recorded(environments, client, rules_of_child(client))
        write(f"children/{client.name}", shapes)
        said += f", {len(shapes)} with a subagent"
    return said


def _recorded(environments: Path, client: Client, steps: list[dict[str, Any]]) -> list[Shape]:
    with (
        TemporaryDirectory() as folder,
        TemporaryDirectory(ignore_cleanup_errors=True) as home,
        scripted_gateway(Path(folder), rules=steps) as herma,
        recording_proxy(herma.root_url) as proxy,
    ):
        place = ClientHome(environments, client, Path(home), proxy.root_url)
        for number in range(NUM_CALLS):
            (place.work / f"note{number}.txt").write_text(f"{NOTE}\n")
        done = place.run(request_of(client), BOUND_S)
        notes = [f"note{number}" for number in range(NUM_CALLS)]
        neutral = Neutral((NOTE, request_of(client), CHILD, CHILD_DONE, *notes))
        shapes = [_shape(one, neutral) for one in proxy.turns()]
    if client.said not in done.output:
        print(f"{client.name}: {done.status} {done.output[-1500:]} {done.errors[-1500:]}")
    return shapes


def _shape(asked: Asked, neutral: Neutral) -> Shape:
    headers = {name: asked.headers[name] for name in KEPT_HEADERS if name in asked.headers}
    # Behind the program's name and version stands the machine's system.
    headers = {**headers, "user-agent": headers.get("user-agent", "none").partition(" ")[0]}
    names = {
        name: neutral.of(value)
        for name, value in asked.headers.items()
        if SESSION_HEADER.fullmatch(name) and name != "user-agent"
    }
    return Shape(asked.path, {**headers, **names}, neutral.of(asked.json))


def main(environments: Path, names: Sequence[str]) -> None:
    """Record the named clients."""
    for client in all_clients():
        if client.name in names:
            print(f"{client.name}: {record(environments, client)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
