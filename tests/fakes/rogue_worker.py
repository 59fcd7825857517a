"""A process that joins as a worker and lies: `python -m tests.fakes.rogue_worker`, with its orders
in JSON on standard input. It may run as a user that can read nothing of the fleet's.

Each line that it prints is what it hears: the type of a message, and why it was dismissed. It ends
when its input does.
"""

import json
import os
import sys
from typing import Any

import trio

from protocol.ids import WorkerId
from protocol.messages import Dismiss, Files, Finished, FromWorker, TokenItem, Tokens, ToWorker
from protocol.tokens import pack_tokens
from protocol.transport import CurveClient, LocalDealer, is_local, make_pair
from protocol.wire import decode_to_worker
from tests.fakes.worker import FakeWorker


class Rogue(FakeWorker):
    """Sends false files if `lies` about them. Prints what it hears."""

    lies = False

    def say(self, message: FromWorker) -> None:
        if isinstance(message, Files) and self.lies:
            message = Files(message.digest, {**message.files, "tokenizer.json": b"{}"})
        super().say(message)

    def _hear(self, frame: bytes) -> None:
        print(told(decode_to_worker(frame)), flush=True)
        super()._hear(frame)


def told(message: ToWorker) -> str:
    """The line about a message."""
    reason = f" {message.reason}" if isinstance(message, Dismiss) else ""
    return f"heard {type(message).__name__}{reason}"


def _keys(orders: dict[str, Any]) -> CurveClient | None:
    if (server_key := orders.get("server_key")) is None:
        return None
    public, secret = orders.get("pair") or make_pair()
    return CurveClient(public, secret, server_key)


async def _lie(rogue: Rogue) -> None:
    """Send tokens and ends of other workers' sequences, in frames and out of them."""
    while True:
        ids = os.urandom(16), 1
        rogue.say(Tokens(1, (TokenItem(*ids, 0, pack_tokens([1, 2, 3])),)))
        rogue.say(Finished(*ids, "stop", 1, 0, 3))
        rogue.say_frame(os.urandom(64))
        await trio.sleep(0.05)


async def main() -> None:
    """Join as ordered, until the input ends."""
    orders = json.loads(sys.stdin.readline())
    address = orders["address"]
    rogue = Rogue(
        orders["name"],
        model=orders["model"],
        identity=os.urandom(16),
        keys=_keys(orders),
        text="I am the rogue.",
    )
    rogue.lies = orders.get("lies", False)
    async with trio.open_nursery() as nursery:
        if is_local(address):
            rogue._socket.close()
            rogue._socket = LocalDealer(
                WorkerId(os.urandom(16)),
                rogue._hear,
                on_link=rogue._link_changed,
                admits_others=True,
            )
            rogue._socket.connect(address)
        else:
            rogue.connect(address)
        nursery.start_soon(rogue.run)
        rogue.register()
        if orders.get("floods"):
            nursery.start_soon(_lie, rogue)
        print("dials", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
