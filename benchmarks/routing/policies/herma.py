"""Herma's own policy: the gateway's dispatcher itself, driven by messages as data.

Translates between the simulation and `gateway.routing.fleet_state.FleetState`; no part of the
policy is in this file. Clients do not announce the length of an answer, so the dispatcher knows
only the averages that it learns.
"""

from collections.abc import Sequence
from typing import Final

from benchmarks.routing.policies.base import Placed, Setting
from benchmarks.routing.trace import TracedTurn
from benchmarks.routing.worker import WorkerReport
from config import GatewayConfig, ModelConfig
from gateway.routing.effects import Assign, Effects, RouteRequest
from gateway.routing.fleet_state import FleetState
from protocol.ids import WorkerId
from protocol.messages import PROTOCOL_VERSION, BlocksSnapshot, EngineFacts, Register

MODEL: Final = "model"
WINDOW_TOKENS: Final = 262_144
TICK_S: Final = 0.25
NO_LIMIT: Final = 1_000_000
MAX_PAUSE_S: Final = GatewayConfig().max_pause_s


class Herma:
    """The dispatcher's state."""

    tick_s: float | None = TICK_S

    def __init__(self, setting: Setting, *, max_pause_s: float = MAX_PAUSE_S) -> None:
        self._outputs: dict[int, int] = {}
        self.dispatch = FleetState(
            (ModelConfig(name=MODEL),),
            max_queue=NO_LIMIT,
            resume_wait_s=120.0,
            max_pause_s=max_pause_s,
        )
        self._ids = [WorkerId(n.to_bytes(16, "big")) for n in range(setting.num_workers)]
        self._numbers = {worker_id: n for n, worker_id in enumerate(self._ids)}
        spec, size = setting.spec, setting.block_size
        engine = EngineFacts(
            kind="native",
            device="cuda",
            dtype="bfloat16",
            context_length=WINDOW_TOKENS,
            block_size=size,
            kv_tokens=spec.kv_tokens // size * size,
            max_seqs=spec.max_seqs,
            token_budget=spec.token_budget,
            files_digest=bytes(16),
            snapshots=spec.num_states,
        )
        for number, worker_id in enumerate(self._ids):
            register = Register(
                PROTOCOL_VERSION, f"worker-{number}", (MODEL,), "sim", "sim", 1, engine
            )
            self.dispatch.register(worker_id, register, 0.0)
            self.dispatch.heard(worker_id, BlocksSnapshot(0, b""), 0.0)

    def arrived(self, turn: TracedTurn, now: float) -> Sequence[Placed]:
        """Ask for a place."""
        self._outputs[turn.number] = turn.output_tokens
        request = RouteRequest(
            ticket=turn.number,
            model=MODEL,
            key=turn.key,
            weight=1.0,
            session=turn.session,
            digests=turn.digests,
            prompt_tokens=turn.prompt_tokens,
            max_tokens=WINDOW_TOKENS - turn.prompt_tokens,
        )
        return self._placed(self.dispatch.tickets.ask(request, now))

    def on_report(self, report: WorkerReport, now: float) -> Sequence[Placed]:
        """Pass on a worker's messages in the order in which a worker sends them."""
        dispatch, worker_id = self.dispatch, self._ids[report.worker]
        placed: list[Placed] = []
        for number in report.started:
            placed += self._placed(dispatch.tickets.started(number, now))
        for number in report.finished:
            placed += self._placed(dispatch.tickets.release(number, now, self._outputs.pop(number)))
        for event in report.events:
            placed += self._placed(dispatch.heard(worker_id, event, now))
        placed += self._placed(dispatch.heard(worker_id, report.load, now))
        return placed

    def tick(self, now: float) -> Sequence[Placed]:
        return self._placed(self.dispatch.tick(now))

    def _placed(self, effects: Effects) -> list[Placed]:
        return [
            Placed(effect.ticket, self._numbers[effect.worker_id])
            for effect in effects
            if isinstance(effect, Assign)
        ]
