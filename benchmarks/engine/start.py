"""An engine process, measured from its start to its first answer.

Owns the process and its clock, which starts before the process does. Must not import torch, because
the time includes that import. The engine is started as by its supervisor.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from config import WorkerConfig
from protocol import wire
from protocol.errors import ConfigError
from protocol.messages import Finished, Submit
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from workers.ipc.framing import SUPERVISOR, FrameDecoder, encode_frame
from workers.ipc.messages import (
    EngineFailed,
    EngineReady,
    EngineStart,
    Shutdown,
    StartProgress,
    decode_from_engine,
    encode_control,
)

PROBE_TOKENS: Final = 4
_LINK: Final = 1
_LONGEST_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds until the health probe was answered. `phases` holds the seconds of each phase in
    order, `details` its last report.
    """

    seconds: float
    phases: dict[str, float]
    details: dict[str, str]


def measure_start(config: WorkerConfig, environ: dict[str, str]) -> StartTimes:
    """Start an engine with `config`, let it generate, end it. Raises `ConfigError` if it fails."""
    moments: list[tuple[str, float]] = []
    details: dict[str, str] = {}
    started_at = time.perf_counter()
    moments.append(("process", started_at))
    with _engine(environ) as end:
        end.sendall(_frame(EngineStart(msgspec.json.encode(config), 1)))
        for link, payload in _frames(end):
            now = time.perf_counter()
            if link == SUPERVISOR:
                match message := decode_from_engine(payload):
                    case StartProgress(phase=phase, detail=detail):
                        details[phase] = detail
                        if moments[-1][0] != phase:
                            moments.append((phase, now))
                    case EngineFailed():
                        raise ConfigError(f"the engine did not start: {message.cause}")
                    case EngineReady():
                        moments.append(("health probe", now))
                        end.sendall(encode_frame(_LINK, wire.encode(_health_probe(config.serves))))
                    case _:
                        pass  # heartbeats
            elif link == _LINK and wire.peek_tag(payload) == wire.tag_of(Finished):
                break
        ended_at = time.perf_counter()
        end.sendall(_frame(Shutdown()))
    phases: dict[str, float] = {}
    ends = [at for _, at in moments[1:]] + [ended_at]
    for (phase, at), end_at in zip(moments, ends, strict=True):
        phases[phase] = phases.get(phase, 0.0) + end_at - at
    return StartTimes(ended_at - started_at, phases, details)


@contextmanager
def _engine(environ: dict[str, str]) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    argv = [sys.executable, "-m", "workers.engine", "--fd", str(theirs.fileno()), "--name", "bench"]
    with ours, theirs:
        ours.settimeout(_LONGEST_S)
        process = subprocess.Popen(argv, pass_fds=(theirs.fileno(),), env={**os.environ, **environ})
        theirs.close()
        try:
            yield ours
        finally:
            ours.close()  # ends the process if it still runs
            process.wait()


def _frames(end: socket.socket) -> Iterator[tuple[int, bytes]]:
    decoder = FrameDecoder()
    while data := end.recv(1 << 16):
        yield from decoder.feed(data)
    raise ConfigError("the engine ended during its start; its log is above")


def _frame(message: EngineStart | Shutdown) -> bytes:
    return encode_frame(SUPERVISOR, encode_control(message))


def _health_probe(model: str) -> Submit:
    sampling = SamplingParams(max_tokens=PROBE_TOKENS, temperature=0.0, ignore_eos=True)
    return Submit(bytes(16), 0, model, pack_tokens([1, 2, 3]), b"", sampling, 0)
