"""Actions on a host: a Wake-on-LAN packet, and commands.

Owns the packet's bytes: six times FF, then sixteen times the hardware address (AMD, Magic Packet
Technology, 1995). Must not know when an action is due.
"""

import re
import socket as sockets
import subprocess
from typing import Final

import trio

_MAC: Final = re.compile(r"([0-9a-f]{2}[:-]){5}[0-9a-f]{2}", re.IGNORECASE)


class CommandFailedError(Exception):
    """The command did not end with 0; the text says why."""


def magic_packet(mac: str) -> bytes:
    """The 102 bytes of the packet. Raises `ValueError` if `mac` is not a hardware address."""
    if _MAC.fullmatch(mac) is None:
        raise ValueError(f"{mac!r} is not a hardware address like 00:1a:2b:3c:4d:5e")
    return b"\xff" * 6 + bytes.fromhex(re.sub("[:-]", "", mac)) * 16


async def wake(mac: str, address: str, port: int) -> None:
    """Send a magic packet by UDP to a broadcast address, or to one host. Raises `OSError`."""
    with trio.socket.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as socket:
        socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_BROADCAST, 1)
        await socket.sendto(magic_packet(mac), (address, port))


async def run_command(argv: tuple[str, ...], stdin: bytes) -> None:
    """Run a command to its end. Raises `CommandFailedError` unless it exits with 0."""
    try:
        done = await trio.run_process(
            argv, stdin=stdin, capture_stdout=True, capture_stderr=True, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CommandFailedError(f"{argv[0]}: {error}") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        said = f": {words[0][:200]}" if words else ""
        raise CommandFailedError(f"{argv[0]} ends with {done.returncode}{said}")
