"""What an operator's request does to an engine that is just dying."""

import io
import sys
from pathlib import Path

import trio

from config import WorkerConfig
from tests.fakes import stub_engine
from tests.fakes.moody import Mood
from tests.fakes.worker_process import BOUND_S
from workers.supervisor.engine_supervisor import EngineSupervisor
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.identity import worker_identity
from workers.supervisor.log import WorkerLog
from workers.supervisor.restart_policy import RestartPolicy

_CONFIG = WorkerConfig(
    name="w",
    model="m",
    serves="m",
    gateways=(),
    engine="synthetic",
    max_seqs=4,
    token_budget=256,
    max_context=64,
)


class _AskedAtDeath(RestartPolicy):
    """Between an engine's death and the verdict on it the operator corrects its mistake."""

    def __init__(self, mood: Mood) -> None:
        super().__init__()
        self._mood = mood
        self.supervisor: EngineSupervisor | None = None
        self.promised = 0
        self.is_ready = trio.Event()

    def ready(self, now: float) -> None:
        super().ready(now)
        self.is_ready.set()

    def exited(
        self,
        now: float,
        *,
        is_permanent: bool = False,
        is_outside: bool = False,
        is_attached: bool = False,
    ) -> float | None:
        assert is_permanent
        assert self.supervisor is not None
        self._mood.set()
        self.promised = self.supervisor.restart(_CONFIG, force=False)
        return super().exited(
            now, is_permanent=is_permanent, is_outside=is_outside, is_attached=is_attached
        )


async def test_a_restart_asked_for_while_the_engine_dies_is_no_end(tmp_path: Path) -> None:
    """No gateway is told that it starts no more, at which waiting streams would end: it does."""
    mood, lines = Mood(tmp_path), io.StringIO()
    mood.set(exit=1, say="no such model: correct it", is_config=True)
    policy, log = _AskedAtDeath(mood), WorkerLog("w", lines)
    command = [sys.executable, str(Path(stub_engine.__file__)), str(mood.path)]
    supervisor = policy.supervisor = EngineSupervisor(_CONFIG, log, command=command, policy=policy)
    relay = FrameRelay(
        worker_identity(_CONFIG, "test"),
        log,
        supervisor.lifecycle,
        on_work=supervisor.work_sent,
        on_drain=lambda _: None,
        on_siblings=lambda _: None,
        on_distrust=lambda _: None,
    )
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run, relay)
            await policy.is_ready.wait()
            nursery.cancel_scope.cancel()
    log.close()
    assert relay.epoch == policy.promised == 2
    assert "no such model: correct it" in lines.getvalue()
    assert "stopped" not in lines.getvalue()
