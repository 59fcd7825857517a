"""The way of one request through the gateway process: which of our files run, and how many calls.

A gateway runs in a process of its own under `sys.setprofile`, in all its threads, with a scripted
engine behind it. The second turn of a streamed conversation is traced with warm caches: what was
said is new, each of its words was seen before. There are three phases: from the bytes of the
request to `Submit`, from there to the first byte of the answer, and one token in the middle. Of
several conversations each phase is that with the fewest calls: a ping or a tick that falls into it
is not a part of the way. The files and calls of Starlette, which routes, count like ours.

`python -m tests.e2e.one_way` prints the files and functions of each phase; `--calls` prints the
calls in their order.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final

from tests.fakes.worker_process import worker_process

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("gateway", "protocol", "config")
ROUTER: Final = "starlette"
NUM_WARM: Final = 4
"""Requests, and conversations, before those that count: a word is kept when it comes again."""
SUBJECTS: Final = (
    "sea", "moon", "wind", "sun", "rain", "hill", "road", "lake", "star", "tree", "snow", "boat",
)  # fmt: skip
"""One conversation about each. A loaded machine adds ticks to most turns; the least counts."""

SYSTEM: Final = "You are a helpful assistant. Answer in a few words, and never in verse. " * 8
TALK: Final = "Tell me of the {}. What do you say of the {}?"
THEN: Final = "And what else do you say of the {}, and why do you say it of the {}?"
ANSWER: Final = "The {} is what it is, and it is never far away. " * 4 + "So it is with the {}."
FORMS: Final = (TALK, ANSWER, THEN)
READY_S: Final = 60.0
INLINED: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"})
"""Parts of a function: newer Pythons inline most of them."""

Call = tuple[str, str]
"""File and function. Of the two marks, which the client's socket leaves, the file is empty."""
RECEIVED: Final = ("", "recv")
SENT: Final = ("", "send")


class Tracer:
    """Records the calls of product functions in all threads that start after `install`."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._is_on = False
        self._paths: dict[str, str | None] = {}

    def install(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def record(self) -> None:
        self.calls = []
        self._is_on = True

    def stop(self) -> list[Call]:
        self._is_on = False
        return self.calls

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if not self._is_on:
            return
        if event == "call":
            self._add(frame)
        elif event == "c_call" and arg.__name__ in {"recv", "recv_into", "send", "sendmsg"}:
            connection = getattr(arg, "__self__", None)
            if isinstance(connection, socket.socket) and connection.family == socket.AF_INET:
                self._mark(frame, arg.__name__[:4])

    def _mark(self, frame: FrameType, kind: str) -> None:
        """Bytes of the client: what is running now belongs to the phase that begins with them."""
        self.calls.append(("", kind))
        if ("", kind) == RECEIVED:
            for outer in reversed(list(_stack(frame))):
                self._add(outer)

    def _add(self, frame: FrameType) -> None:
        code = frame.f_code
        path = self._paths.get(code.co_filename, "")
        if path == "":
            path = self._paths[code.co_filename] = _product_path(code.co_filename)
        if path is not None and code.co_name not in INLINED:
            self.calls.append((path, code.co_qualname))


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the task that runs, innermost first; below them are trio's loop and `main`."""
    while frame is not None and frame.f_code.co_name != "unrolled_run":
        yield frame
        frame = frame.f_back


def _product_path(filename: str) -> str | None:
    path = Path(filename)
    if path.parent.name == ROUTER:
        return f"{ROUTER}/{path.name}"
    try:
        path = path.relative_to(ROOT)
    except ValueError:
        return None
    is_ours = path.parts[0] in PACKAGES and path.name != "__init__.py"
    return str(path) if is_ours else None


def run_gateway(config: str) -> int:
    """In the child: serve, and obey the lines of stdin, which a thread reads that is not traced."""
    from gateway.__main__ import main

    tracer = Tracer()

    def obey() -> None:
        for line in sys.stdin:
            if line == "record\n":
                tracer.record()
                print("recording", flush=True)
            else:
                print(json.dumps(tracer.stop()), flush=True)

    threading.Thread(target=obey, daemon=True).start()
    tracer.install()
    return main(["--config", config])


@dataclass(frozen=True)
class Phase:
    """A part of the way: the calls in their order."""

    calls: tuple[Call, ...]

    @property
    def files(self) -> list[str]:
        return sorted({path for path, _ in self.calls})

    @property
    def size(self) -> tuple[int, int]:
        """How many files, and how many calls."""
        return len(self.files), len(self.calls)

    def __str__(self) -> str:
        lines = []
        for path in self.files:
            counts = Counter(name for file, name in self.calls if file == path)
            names = (f"{name} x{count}" if count > 1 else name for name, count in counts.items())
            lines.append(f"  {path} ({counts.total()}): {', '.join(names)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class OneWay:
    """The three phases: bytes to `Submit`, `Submit` to the first byte, one steady token."""

    to_submit: Phase
    to_first_byte: Phase
    token: Phase

    def phases(self) -> dict[str, Phase]:
        return {
            "bytes -> Submit": self.to_submit,
            "Submit -> first byte": self.to_first_byte,
            "a steady token": self.token,
        }

    def __str__(self) -> str:
        return "\n".join(
            f"{name}: {len(phase.files)} files, {len(phase.calls)} calls\n{phase}\n"
            for name, phase in self.phases().items()
        )


def trace_one_way() -> OneWay:
    """Run a gateway, a worker and the conversations."""
    with TemporaryDirectory() as folder, _traced_gateway(Path(folder)) as gateway:
        for number in range(NUM_WARM):
            gateway.speak_of_all(number)
        turns = [gateway.second_turn(subject) for subject in SUBJECTS][NUM_WARM:]
    return OneWay(
        *(min(phases, key=lambda phase: phase.size) for phases in zip(*turns, strict=True))
    )


def split(calls: list[Call]) -> tuple[Phase, Phase, Phase]:
    """The phases of one traced turn; the token is the most frequent way of those in the middle."""
    received = calls.index(RECEIVED)
    submitted = next(i for i, call in enumerate(calls) if call[1].endswith("Link.submit"))
    sends = [i for i, call in enumerate(calls) if call == SENT and i > submitted]
    assert received < submitted < sends[0]
    quarter = len(sends) // 4
    ways = Counter(_phase(calls[begin:end]) for begin, end in pairwise(sends[quarter:-quarter]))
    return (
        _phase(calls[received : submitted + 1]),
        _phase(calls[submitted + 1 : sends[0]]),
        ways.most_common(1)[0][0],
    )


def _phase(calls: list[Call]) -> Phase:
    return Phase(tuple(call for call in calls if call[0]))


class _TracedGateway:
    """The child, and one client's connection to it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        host, port = re.findall(r"//(.+):(\d+)", url)[0]
        self._connection = socket.create_connection((host, int(port)))

    def speak_of_all(self, number: int) -> None:
        """Say all that the conversations will say, in another order for each `number`."""
        subjects = SUBJECTS[number:] + SUBJECTS[:number]
        said = [" ".join(form.replace("{}", one) for one in subjects) for form in FORMS]
        roles = ("user", "assistant", "user")
        self._ask([{"role": role, "content": text} for role, text in zip(roles, said, strict=True)])

    def second_turn(self, subject: str) -> tuple[Phase, Phase, Phase]:
        """The phases of the second turn of a conversation about `subject`."""
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": TALK.replace("{}", subject)},
        ]
        answer = self._ask(messages)
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": THEN.replace("{}", subject)},
        ]
        self._wait_idle()
        assert self._obeyed("record") == "recording\n"
        self._ask(messages)
        return split([(path, name) for path, name in json.loads(self._obeyed("report"))])

    def close(self) -> None:
        self._connection.close()

    def _wait_idle(self) -> None:
        """Return once the gateway waits for something: what it still does for the answer before is
        no part of the next request's way.
        """
        deadline = time.monotonic() + READY_S
        while state_of(self._process.pid) != "S":
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def _obeyed(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        while (line := self._process.stdout.readline()).startswith("dashboard "):
            pass  # the gateway prints its dashboard's address behind `ready`
        return line

    def _ask(self, messages: list[dict[str, str]]) -> str:
        body = json.dumps({"model": "echo", "messages": messages, "stream": True}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._connection.sendall(head.encode() + body)
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            data = self._connection.recv(65_536)
            assert data, received
            received += data
        assert received.startswith(b"HTTP/1.1 200"), received
        events = re.findall(rb"data: (\{.+\})\n", received)
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


def state_of(pid: int) -> str:
    """The state of a process's main thread: "R" while it computes or could, "S" while it waits."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def _traced_gateway(folder: Path) -> Iterator[_TracedGateway]:
    address = f"ipc://{folder}/workers"
    config = folder / "gateway.toml"
    config.write_text(
        f'[gateway]\nport = 0\nworker_bind = "{address}"\n[[models]]\nname = "echo"\n'
        f'[ledger]\npath = "{folder}/ledger.sqlite"\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.one_way", "--gateway", str(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HERMA_RUNTIME_DIR": str(folder)},
    )
    assert process.stdout is not None
    script = folder / "script.toml"
    script.write_text("".join(_rule(subject) for subject in SUBJECTS))
    settings = {"model": "builtin:herma-tiny", "engine": "scripted", "script": str(script)}
    try:
        with worker_process(folder, address, **settings):
            line = process.stdout.readline()
            assert line.startswith("ready "), line
            gateway = _TracedGateway(process, line.split()[1])
            yield gateway
            gateway.close()
    finally:
        process.terminate()
        process.communicate(timeout=READY_S)


def _rule(subject: str) -> str:
    answer = json.dumps(ANSWER.replace("{}", subject))
    return f'[[rules]]\ncontains = "{subject}"\nanswer = {answer}\ntoken_ms = 3\n'


def main() -> None:
    """What this file says."""
    parser = argparse.ArgumentParser(description="The way of one request through the gateway.")
    parser.add_argument("--calls", action="store_true", help="print the calls in their order")
    parser.add_argument("--gateway", metavar="CONFIG", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.gateway is not None:
        sys.exit(run_gateway(arguments.gateway))
    way = trace_one_way()
    print(way)
    if arguments.calls:
        for name, phase in way.phases().items():
            print(name, *(f"  {path}: {function}" for path, function in phase.calls), sep="\n")


if __name__ == "__main__":
    main()
