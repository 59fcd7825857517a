"""A stand-in for an engine of two ranks: `python -m tests.fakes.group_engine RANK MASTER [PORT]`.

Rank 0 serves only while rank 1 is connected to it, and neither notices the other's death: a rank
that has lost its companion hangs, as collectives do.
"""

import socket
import sys
import threading
import time

from tests.fakes.foreign_engine import Settings, State, open_server


def lead(master: str, port: str) -> None:
    """Wait for rank 1, then answer until it is gone."""
    host, _, number = master.rpartition(":")
    with socket.create_server((host, int(number))) as listener:
        print("waiting for rank 1", flush=True)
        other, _ = listener.accept()
    state = State(Settings(token_ms=10))
    server = open_server(port, state)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("Application startup complete.", flush=True)
    other.recv(1)
    # Its answers stop, its process does not.
    state.settings.token_ms = 1e9
    threading.Event().wait()


def follow(master: str) -> None:
    """Find rank 0, then stay for ever."""
    host, _, number = master.rpartition(":")
    while True:
        try:
            link = socket.create_connection((host, int(number)))
            break
        except OSError:
            print(f"rank 0 is not there yet: {time.monotonic()}", flush=True)
            time.sleep(0.1)
    print("connected to rank 0", flush=True)
    link.recv(1)
    threading.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "0":
        lead(sys.argv[2], sys.argv[3])
    else:
        follow(sys.argv[2])
