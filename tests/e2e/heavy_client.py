"""A client at its worst, in a process of its own: `python -m tests.e2e.heavy_client LOAD URL`.

Owns the kinds of load. Each task of a load does the same again and again until the process is
ended, and SIGTERM prints how often each status came. Bodies are made before the first is sent, and
sockets take them as they are, so that this process needs little of the processor that it shares
with what it loads.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

KEY: Final = "sk-much"
WORDS: Final = "word " * 5_600_000
_PAUSE_S: Final = 0.5
_NEVER_S: Final = 3600.0

Address = tuple[str, int]
Act = Callable[[Address], Awaitable[str]]


def chat(content: str, model: str = "m", **fields: object) -> bytes:
    """The body of a chat."""
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": model, "messages": messages, "max_tokens": 4, **fields}).encode()


def posted(body: bytes, num_bytes: int | None = None) -> bytes:
    """A whole request with this body, which may announce another length."""
    length = len(body) if num_bytes is None else num_bytes
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n\r\n"
    )
    return head.encode() + body


@contextlib.asynccontextmanager
async def sent(
    address: Address, request: bytes, room: int | None = None
) -> AsyncIterator[socket.socket]:
    """A connection over which `request` was sent, as far as the other end takes it. `room` is for
    bytes of the answer that are not read, by default the kernel's.
    """
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        if room is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        await loop.sock_connect(connection, address)
        # An early refusal ends the sending; its answer can be read nevertheless.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await loop.sock_sendall(connection, request)
        yield connection


def posts(body: bytes) -> Act:
    """Send the body, read the answer; wait a little after a refusal of too much."""
    request = posted(body)

    async def act(address: Address) -> str:
        loop = asyncio.get_running_loop()
        answer = b""
        async with sent(address, request) as connection:
            while part := await loop.sock_recv(connection, 2**16):
                answer = answer or part
        status = answer[9:12].decode()
        if status in ("429", "503"):
            await asyncio.sleep(_PAUSE_S)
        return status

    return act


def leaves(body: bytes) -> Act:
    """Ask for a long answer and leave at its beginning."""
    request = posted(body)

    async def act(address: Address) -> str:
        async with sent(address, request):
            await asyncio.sleep(0.05)
        return "left"

    return act


def stays(request: bytes) -> Act:
    """Send the request, then neither send nor read."""

    async def act(address: Address) -> str:
        async with sent(address, request, room=4096):
            await asyncio.sleep(_NEVER_S)
        return "stayed"

    return act


@dataclass
class Load:
    """One kind of load: what one of its tasks does, again and again. `starting_s` is how long it
    may take until all of them have begun.
    """

    num_tasks: int
    act: Callable[[], Act]
    starting_s: float = 1.0


_TALK: Final[dict[str, object]] = {"stream": True, "ignore_eos": True}

LOADS: Final = {
    "6 prompts of 7 MB": Load(6, lambda: posts(chat(WORDS[:7_000_000]))),
    "20 prompts of 28 MB": Load(20, lambda: posts(chat(WORDS))),
    "monstrous bodies": Load(4, lambda: posts(chat("Hi", tools=[{"type": "function"}] * 100_000))),
    "a flood of cancels": Load(20, lambda: leaves(chat("Hello? " * 500, max_tokens=500, **_TALK))),
    "2,000 idle connections": Load(2000, lambda: stays(posted(b"", 28_000_000)), 5.0),
    "500 slow readers": Load(
        500, lambda: stays(posted(chat("Hello?", "slow", max_tokens=2000, **_TALK))), 5.0
    ),
}


async def run(load: Load, address: Address) -> Counter[str]:
    """Act until SIGTERM."""
    counts: Counter[str] = Counter()
    act = load.act()

    async def again() -> None:
        while True:
            try:
                counts[await act(address)] += 1
            except OSError as error:
                counts[type(error).__name__] += 1
                await asyncio.sleep(_PAUSE_S)

    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    tasks = [asyncio.create_task(again()) for _ in range(load.num_tasks)]
    print("ready", flush=True)
    await over.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return counts


def main() -> None:
    """Run the load that is named, with the lowest priority."""
    os.nice(19)
    parts = urlsplit(sys.argv[2])
    assert parts.hostname is not None
    assert parts.port is not None
    counts = asyncio.run(run(LOADS[sys.argv[1]], (parts.hostname, parts.port)))
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
