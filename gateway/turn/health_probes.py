"""Health probes: short sequences that prove that a worker generates tokens.

Owns the sequence, its deadline and its result. Must not know when a probe is due, nor what follows
from its result: `routing/fallback.py` decides both.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from gateway.link import Attempt, Outcome, RelayClient, WorkerLink
from gateway.routing import Dispatcher, Lease, Probe, ProbeResult
from gateway.turn.relay_run import engine_behind
from gateway.upstream import ProviderFailed
from protocol.ids import ID_BYTES, RequestId
from protocol.messages import Accepted, Finished, Rejected, RelayFacts, Submit, TokenItem
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens

PROBE_S: Final = 10.0
"""Four tokens take milliseconds on a ready worker, which has compiled its kernels."""
PROBE_TOKENS: Final = 4
_OK: Final = 200
_PROMPT: Final = (1, 2, 3, 4)
"""Token ids that every vocabulary has. They are less than a block, so no cache keeps them."""


class HealthProbes:
    """`run` runs the probes that the dispatcher asks for."""

    def __init__(
        self, dispatcher: Dispatcher, link: WorkerLink, draw: Callable[[int], bytes]
    ) -> None:
        self._dispatcher = dispatcher
        self._link = link
        self._draw = draw

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started()
            async for probe in self._dispatcher.probes:
                nursery.start_soon(self._run_probe, probe)

    async def _run_probe(self, probe: Probe) -> None:
        if (facts := self._dispatcher.relay_facts(probe.worker_id)) is not None:
            await self._run_chat(probe, facts)
            return
        num_tokens = 0

        def count(item: TokenItem) -> bool:
            nonlocal num_tokens
            num_tokens += len(item.ids)
            return False

        attempt = Attempt(
            Lease(0, probe.worker_id, 0, "health probe"),
            RequestId(self._draw(ID_BYTES)),
            1,
            expected=0,
            on_tokens=count,
            on_accepted=_ignore,
        )
        try:
            self._link.submit(attempt, _submit(attempt, probe.model))
            with trio.move_on_after(PROBE_S):
                await attempt.wait()
        finally:
            self._link.forget(attempt)
        self._report(probe, attempt.outcome, has_tokens=num_tokens > 0)

    async def _run_chat(self, probe: Probe, facts: RelayFacts) -> None:
        """As `_run_probe`, for a text-level engine."""
        client = RelayClient(
            self._link,
            Lease(0, probe.worker_id, 0, "health probe"),
            RequestId(self._draw(ID_BYTES)),
            1,
            model=probe.model,
            digests=(),
            known_s=PROBE_S,
        )
        engine = engine_behind(self._link.worker_name(probe.worker_id), client, facts)
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": PROBE_TOKENS}
        has_answered = False
        with trio.move_on_after(PROBE_S), suppress(ProviderFailed):
            has_answered = (await engine.complete(chat, facts.model)).status == _OK
        self._report(probe, client.attempt.outcome, has_tokens=has_answered)

    def _report(self, probe: Probe, outcome: Outcome | None, *, has_tokens: bool) -> None:
        result: ProbeResult = "failed"
        why = "it broke off"
        match outcome:
            case Finished(reason="stop" | "length") | None if has_tokens:
                # One token is enough: with slow steps not all arrive before the deadline.
                result, why = "passed", ""
            case Rejected(reason="busy" | "draining" | "not_ready"):
                result, why = "busy", ""
            case None:
                result, why = "late", f"no tokens in {PROBE_S:g} s"
            case Rejected(reason=reason):
                why = f"rejected: {reason}"
            case _:
                pass
        worker = self._link.worker_name(probe.worker_id)
        self._dispatcher.probe_ended(probe, result, worker, why)


def _submit(attempt: Attempt, model: str) -> Submit:
    return Submit(
        request_id=attempt.request_id,
        attempt=attempt.number,
        model=model,
        prompt_ids=pack_tokens(_PROMPT),
        output_ids=b"",
        sampling=SamplingParams(max_tokens=PROBE_TOKENS, temperature=0.0, ignore_eos=True),
        seed=0,
    )


def _ignore(_: Accepted) -> None:
    pass
