"""An engine of a few lines at the supervisor's seam: it does what its mood file says.

`python tests/fakes/stub_engine.py MOOD --fd N --name NAME --parent PID`. The mood is JSON:
`print` (lines), `say` (the cause of EngineFailed), `is_config`, `phase` (reported before), `exit`,
`signal` (of its own death), `child` (true: a process of its own, whose pid is printed),
`stall` (true: no progress any more), `close` (true: it closes its channel and lives on), `deaf`
(true: it leaves neither when asked nor by SIGTERM), `health_probe` ("wrong": too few tokens),
`leave` (files in its temporary directory), `waits_for` (a path: it does nothing before that
exists), `model_dir`, `trouble` (of EngineReady), `sleep_way`, `sleep_refusal` (of EngineReady),
`more_ways` (pairs of way and refusal), `fails_by` (the only way that `on_sleep` is about),
`on_sleep`, `on_wake`: "dies", "hangs", "lies" (the memory stays), or the reason of a refusal;
`slept` (more fields of Slept), `taken` (a path: others have the memory while that exists). While
its memory is out, there is a file `asleep` beside the mood.
Without any it gets ready and serves nothing but the health probe.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from protocol import wire
from protocol.messages import EngineFacts, Finished, FromWorker, Submit, TokenItem, Tokens
from protocol.tokens import pack_tokens
from workers.ipc.framing import SUPERVISOR, FrameDecoder, encode_frame
from workers.ipc.messages import (
    FIRST_CONTROL_TAG,
    ClearCache,
    Cleared,
    Drained,
    DrainEngine,
    EngineFailed,
    EngineReady,
    FromEngine,
    Heartbeat,
    Shutdown,
    SleepEngine,
    Slept,
    StartProgress,
    WakeEngine,
    Woken,
    decode_to_engine,
    encode_control,
)

FACTS = EngineFacts("stub", "none", "none", 4096, 32, 1024, 4, 256, bytes(16))


def main() -> int:
    mood: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    link = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
    _prelude(mood)
    if "phase" in mood:
        _say(link, StartProgress(mood["phase"], 0.5))
    if "say" in mood:
        _say(link, EngineFailed(mood["say"], is_config=mood.get("is_config", False)))
    if mood.get("close"):
        link.close()
    if "signal" in mood:
        os.kill(os.getpid(), mood["signal"])
    if "exit" in mood:
        return int(mood["exit"])
    while mood.get("stall") or mood.get("close"):
        time.sleep(1)
    words = ("trouble", "sleep_way", "sleep_refusal")
    said = {word: mood.get(word, "") for word in words}
    more = tuple([(way, why) for way, why in mood.get("more_ways", ())])
    _say(link, EngineReady(FACTS, mood["model_dir"], **said, more_ways=more))
    return _serve(link, mood)


def _prelude(mood: dict[str, Any]) -> None:
    while "waits_for" in mood and not Path(mood["waits_for"]).exists():
        time.sleep(0.01)
    for line in mood.get("print", ()):
        print(line, flush=True)
    if mood.get("child"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"child {child.pid}", flush=True)
    if mood.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for name in mood.get("leave", ()):
        (Path(tempfile.gettempdir()) / name).write_text("left")


def _serve(link: socket.socket, mood: dict[str, Any]) -> int:  # noqa: C901
    decoder = FrameDecoder()
    link.settimeout(0.2)
    while True:
        try:
            data = link.recv(65536)
        except TimeoutError:
            _say(link, Heartbeat(0, busy=False))
            continue
        if not data:
            return 1
        for number, payload in decoder.feed(data):
            if number == SUPERVISOR and (wire.peek_tag(payload) or 0) >= FIRST_CONTROL_TAG:
                match decode_to_engine(payload):
                    case Shutdown() if not mood.get("deaf"):
                        return 0
                    case DrainEngine():
                        _say(link, Drained())
                    case ClearCache() if mood.get("clears"):
                        _say(link, Cleared(1))
                    case SleepEngine(way=way):
                        fault = mood.get("on_sleep", "") if way == mood.get("fails_by", way) else ""
                        why = _move(link, fault, is_asleep=True)
                        _say(link, Slept(why, **mood.get("slept", {})))
                    case WakeEngine():
                        fault, taken = mood.get("on_wake", ""), Path(mood.get("taken", "/nowhere"))
                        if taken.exists():
                            _say(link, Woken("others have taken the memory", is_asleep=True))
                            continue
                        _say(link, Woken(_move(link, fault, is_asleep=False)))
            elif isinstance(message := wire.decode_to_worker(payload), Submit):
                _sing(link, message, mood)


def _move(link: socket.socket, fault: str, *, is_asleep: bool) -> str:
    """Move the memory out or back; why it stays. Heartbeats say so, as an engine's thread does."""
    _say(link, Heartbeat(0, busy=True, phase="moving"))
    why = _moved(link, fault, is_asleep=is_asleep)
    for _ in range(2):  # the first may be older than the wish, for all that the supervisor knows
        _say(link, Heartbeat(0, busy=False))
    return why


def _moved(link: socket.socket, fault: str, *, is_asleep: bool) -> str:
    if fault == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    while fault == "hangs":
        _say(link, Heartbeat(0, busy=True, phase="moving"))
        time.sleep(0.1)
    if fault not in ("", "lies"):
        return fault
    mark = Path(sys.argv[1]).with_name("asleep")
    if not is_asleep:
        mark.unlink(missing_ok=True)
    elif not fault:
        mark.touch()
    return ""


def _sing(link: socket.socket, submit: Submit, mood: dict[str, Any]) -> None:
    count = submit.sampling.max_tokens - (mood.get("health probe") == "wrong")
    item = TokenItem(submit.request_id, submit.attempt, 0, pack_tokens(range(count)))
    _say(link, Tokens(1, (item,)))
    _say(link, Finished(submit.request_id, submit.attempt, "length", 4, 0, count))


def _say(link: socket.socket, message: FromEngine | FromWorker) -> None:
    is_ours = isinstance(message, FromEngine)
    payload = encode_control(message) if is_ours else wire.encode(message)  # type: ignore[arg-type]
    link.sendall(encode_frame(SUPERVISOR, payload))


if __name__ == "__main__":
    sys.exit(main())
