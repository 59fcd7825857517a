"""Health probes: short sequences that prove that a worker generates tokens.

Owns the sequence, its deadline and its result. Must not know when a probe is due, nor what follows
from its result: `routing/fallback.py` decides both.
"""

from collections.abc import Callable
from typing import Final

import msgspec
import trio

from gateway.link import Attempt, Outcome, RelayClient, WorkerLink
from gateway.routing import Dispatcher, Lease, Probe, ProbeResult
from gateway.turn.relay_run import engine_behind
from gateway.turn.try_loop import LOADED, NO_ROOM
from gateway.upstream import Provider, ProviderUnavailable
from protocol.ids import ID_BYTES, RequestId
from protocol.messages import Accepted, Finished, Rejected, RelayFacts, TokenItem
from protocol.probing import PROBE_TOKENS, probe_of
from protocol.reading import FAULTS

PROBE_S: Final = 10.0
"""Four tokens take milliseconds on a ready worker, which has compiled its kernels."""
_OK: Final = 200
_SAID: Final = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")


class _Usage(msgspec.Struct):
    completion_tokens: object = None


class _Choice(msgspec.Struct):
    message: dict[str, object] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_decode: Final = msgspec.json.Decoder(_Answer).decode


class HealthProbes:
    """`run` runs the probes that the dispatcher asks for. A probe has failed without a token after
    `limit_s()` seconds, and after `PROBE_S` in any case.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        link: WorkerLink,
        draw: Callable[[int], bytes],
        limit_s: Callable[[], float] = lambda: PROBE_S,
    ) -> None:
        self._dispatcher = dispatcher
        self._link = link
        self._draw = draw
        self._limit_s = limit_s

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
            self._link.submit(attempt, probe_of(attempt.request_id, attempt.number, probe.model))
            with trio.move_on_after(min(PROBE_S, self._limit_s())):
                await attempt.wait()
        finally:
            self._link.forget(attempt)
        self._report(probe, attempt.outcome, has_tokens=num_tokens > 0)

    async def _run_chat(self, probe: Probe, facts: RelayFacts) -> None:
        """Like `_run_probe`, for a text-level engine: a chat in one piece, then, if trust depends
        on it, a streamed chat, because an engine may fail in only one of the two.
        """
        result: ProbeResult = "late"
        limit_s = min(PROBE_S, self._limit_s())
        why = f"no tokens in {limit_s:g} s"
        with trio.move_on_after(limit_s):
            result, why = await self._chat(probe, facts, streamed=False)
            if probe.is_of_trust and result == "passed":
                result, why = "late", "no streamed tokens in time"
                result, why = await self._chat(probe, facts, streamed=True)
        worker = self._link.worker_name(probe.worker_id)
        self._dispatcher.probe_ended(probe, result, worker, why)

    async def _chat(
        self, probe: Probe, facts: RelayFacts, *, streamed: bool
    ) -> tuple[ProbeResult, str]:
        client = RelayClient(
            self._link,
            Lease(0, probe.worker_id, 0, "health probe"),
            RequestId(self._draw(ID_BYTES)),
            1,
            model=probe.model,
            digests=(),
        )
        name = self._link.worker_name(probe.worker_id)
        engine = engine_behind(name, client, facts)
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": PROBE_TOKENS}
        try:
            if streamed:
                return await self._streamed(engine, {**chat, "stream": True}, facts)
            answer = await engine.complete(chat, facts.model)
        except ProviderUnavailable as error:
            outcome = client.attempt.outcome
            if isinstance(outcome, Rejected) and outcome.reason not in NO_ROOM:
                return "failed", f"rejected: {outcome.reason}"
            if isinstance(outcome, Rejected) or error.status in LOADED:
                return "busy", ""
            return "failed", _why(error.status)
        if answer.status != _OK:
            return "failed", _why(answer.status)
        return ("passed", "") if has_tokens(answer.body) else ("failed", "an answer without tokens")

    async def _streamed(
        self, engine: Provider, chat: dict[str, object], facts: RelayFacts
    ) -> tuple[ProbeResult, str]:
        has_content = False

        def note(_: bytes) -> None:
            nonlocal has_content
            has_content = True

        answer = await engine.stream(chat, facts.model, note)
        if answer is not None:
            return "failed", _why(answer.status)
        return ("passed", "") if has_content else ("failed", "a stream without content")

    def _report(self, probe: Probe, outcome: Outcome | None, *, has_tokens: bool) -> None:
        result: ProbeResult = "failed"
        why = "it broke off"
        match outcome:
            case Finished(reason="stop" | "length") | None if has_tokens:
                # One token is enough: with slow steps not all arrive before the deadline.
                result, why = "passed", ""
            case Rejected(reason=reason) if reason in NO_ROOM:
                result, why = "busy", ""
            case None:
                result, why = "late", "no tokens in time"
            case Rejected(reason=reason):
                why = f"rejected: {reason}"
            case _:
                pass
        worker = self._link.worker_name(probe.worker_id)
        self._dispatcher.probe_ended(probe, result, worker, why)


def has_tokens(body: bytes) -> bool:
    """Whether a chat's answer in one piece has tokens, shown or only counted."""
    try:
        answer = _decode(body)
    except FAULTS:
        return False
    for choice in answer.choices:
        if choice.message is not None and any(choice.message.get(name) for name in _SAID):
            return True
    return answer.usage is not None and bool(answer.usage.completion_tokens)


def _why(status: int | None) -> str:
    return "it broke off" if status is None else f"status {status}"


def _ignore(_: Accepted) -> None:
    pass
