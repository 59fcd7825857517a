"""Ports for processes that count on from one."""

import random
import socket
from pathlib import Path

_FIRST = 20_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> int:
    """The first of so many free ports in a row, none of which the kernel gives to somebody who asks
    for any: a process that dies finds its own free again, whatever connections there are meanwhile.
    """
    end = int(_RANGE.read_text().split()[0])
    while True:
        first = random.randrange(_FIRST, end - count)
        held: list[socket.socket] = []
        try:
            # One by one into the list, so that a taken port leaves none of those before it open.
            held.extend(socket.create_server(("127.0.0.1", first + i)) for i in range(count))
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
        return first
