"""Ports for processes that count on from one."""

import socket


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        held: list[socket.socket] = []
        try:
            held.append(socket.create_server(("127.0.0.1", 0)))
            first: int = held[0].getsockname()[1]
            # One by one into the list, so that a taken port leaves none of those before it open.
            held.extend(socket.create_server(("127.0.0.1", first + i)) for i in range(1, count))
        except (OSError, OverflowError):
            continue
        finally:
            for one in held:
                one.close()
        return first
