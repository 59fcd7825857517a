"""A native engine that can be told to misbehave: `HERMA_ENGINE_COMMAND` of the chaos harness.

`python tests/chaos/engine.py FOLDER --fd N --name NAME --parent PID`. It is the real engine (loop,
scheduler, runner, float32 weights) with three additions: every step lasts at least `pace_s` and
`prompt_token_s` for each token of a prompt, so that two cores carry a fleet; FOLDER/NAME.json
(`Orders`) is looked at before every step; and before anything is imported FOLDER/NAME.exit ends
this start with the code that it holds, while FOLDER/NAME.hold keeps it waiting. Owns how an order
becomes a fault. Must not know the harness.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HOLD_POLL_S = 0.02
SLOW_S = 5.0
SLOW_FACTOR = 10.0
LOADED = "chaos: loaded at "
DONE = "chaos: ordered "


@dataclass(frozen=True, slots=True)
class Orders:
    """What the engine does. `slow`, `out_of_memory`, `garbage_...` are counters: each rise is one
    such fault in the next step, or `SLOW_S` of steps that take `SLOW_FACTOR` times as long.
    """

    pace_s: float = 0.015
    prompt_token_s: float = 0.0
    slow: int = 0
    out_of_memory: int = 0
    garbage_frame: int = 0
    garbage_stream: int = 0

    def write(self, folder: Path, name: str) -> None:
        """Give these orders to the engines of that name, at once and whole."""
        fresh = folder / f"{name}.json.new"
        fresh.write_text(json.dumps(asdict(self)))
        fresh.rename(folder / f"{name}.json")


class OrderBook:
    """The orders as they stand, read again only when the file has changed."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.json"
        self._changed_at = 0
        self._read()
        self._done = self.now

    def _read(self) -> None:
        changed_at = self._path.stat().st_mtime_ns
        if changed_at != self._changed_at:
            self._changed_at = changed_at
            self.now = Orders(**json.loads(self._path.read_text()))

    def look(self) -> Orders:
        """The orders of this moment."""
        self._read()
        return self.now

    def is_due(self, what: str) -> bool:
        """Whether the counter `what` has risen since it was last asked for."""
        value = getattr(self.now, what)
        is_new: bool = value > getattr(self._done, what)
        if is_new:
            self._done = replace(self._done, **{what: value})
            print(f"{DONE}{what}", flush=True)
        return is_new


class TroubledRunner:
    """The runner's seam around a native runner."""

    def __init__(self, inner: Any, orders: OrderBook, channels: Sequence[Any]) -> None:
        self.facts, self.eos_ids, self.model_dir = inner.facts, inner.eos_ids, inner.model_dir
        self.lookahead, self.device_use = inner.lookahead, inner.device_use
        self.tier = inner.tier
        self._inner = inner
        self._orders = orders
        self._channels = channels
        self._began_at = 0.0
        self._num_prompt_tokens = 0
        self._slow_until = 0.0
        inner._steps = _FragileSteps(inner._steps, orders)

    @property
    def has_pending_captures(self) -> bool:
        return False

    def prepare(self, *, pending_only: bool) -> bool:  # noqa: ARG002 - the seam's
        return False

    def launch(self, plan: Any) -> Any:
        """Start the step, after what was ordered."""
        self._began_at = time.monotonic()
        self._orders.look()
        if self._orders.is_due("slow"):
            self._slow_until = self._began_at + SLOW_S
        self._send_garbage()
        self._num_prompt_tokens = sum(one.length for one in plan.chunks if one.length > 1)
        return self._inner.launch(plan)

    def collect(self, step: Any) -> Any:
        """Wait for the step, and until it has lasted as long as it must."""
        result = self._inner.collect(step)
        is_slow = self._began_at < self._slow_until
        orders = self._orders.now
        lasts_s = orders.pace_s * (SLOW_FACTOR if is_slow else 1.0)
        lasts_s += orders.prompt_token_s * self._num_prompt_tokens
        if (rest_s := self._began_at + lasts_s - time.monotonic()) > 0:
            time.sleep(rest_s)
        return result

    def _send_garbage(self) -> None:
        from workers.ipc.framing import BROADCAST

        (channel,) = self._channels
        if self._orders.is_due("garbage_frame"):
            channel.send([(BROADCAST, bytes([0x92, 0x7F])), (BROADCAST, os.urandom(512))])
        if self._orders.is_due("garbage_stream"):
            channel._socket.sendall(b"\xff" * 64)


class _FragileSteps:
    """The device's steps, of which one fails for lack of memory when it is due."""

    def __init__(self, inner: Any, orders: OrderBook) -> None:
        self._inner = inner
        self._orders = orders

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, *arguments: Any, **options: Any) -> Any:
        import torch

        if self._orders.is_due("out_of_memory"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (ordered)")
        return self._inner.launch(*arguments, **options)


def _obey_before_start(folder: Path, name: str, parent: int) -> None:
    ending = folder / f"{name}.exit"
    if ending.exists():
        code = int(ending.read_text())
        ending.unlink()
        print(f"{ending.name}: this start ends with {code}", flush=True)
        os._exit(code)
    while (folder / f"{name}.hold").exists():
        if os.getppid() != parent:
            os._exit(1)
        time.sleep(HOLD_POLL_S)


def main() -> int:
    """The engine's own main, with its runner and channel within reach."""
    folder, argv = Path(sys.argv[1]), sys.argv[2:]
    name = argv[argv.index("--name") + 1]
    _obey_before_start(folder, name, int(argv[argv.index("--parent") + 1]))

    import workers.engine.__main__ as engine
    from workers.engine import start as load
    from workers.loop.channel import EngineChannel

    channels: list[EngineChannel] = []
    plain_load = load.load_runner

    def keep_channel(sock: Any) -> EngineChannel:
        channels.append(EngineChannel(sock))
        return channels[0]

    def load_troubled(*arguments: Any, **named: Any) -> TroubledRunner:
        runner = TroubledRunner(plain_load(*arguments, **named), OrderBook(folder, name), channels)
        print(f"{LOADED}{time.time():.3f}", flush=True)
        return runner

    engine.EngineChannel = keep_channel  # type: ignore[assignment, misc]
    load.load_runner = load_troubled  # type: ignore[assignment]
    return engine.main(argv)


if __name__ == "__main__":
    os._exit(main())
