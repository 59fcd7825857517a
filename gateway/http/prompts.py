"""Several prompts in one request: one turn per prompt.

Owns how the turns' events become one stream: choices are numbered through, there is one start and
one usage, and the first error ends all turns. Must not know HTTP or what a prompt says.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
import trio

from gateway.api import (
    ChatRequest,
    Embedded,
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    TurnEvent,
    Usage,
)
from gateway.http.edge import Emit, RunTurn
from gateway.turn import Caller

MAX_AT_ONCE: Final = 8
"""Turns of one request at a time, so that a batch does not fill the queue by itself."""


class EachPrompt:
    """`run` is a `RunTurn` for all of `requests`, which differ only in their prompts."""

    def __init__(self, run_turn: RunTurn, requests: Sequence[ChatRequest]) -> None:
        self._run_turn = run_turn
        self._requests = requests

    async def run(self, _request: ChatRequest, caller: Caller, emit: Emit) -> None:
        """Run all turns, at most `MAX_AT_ONCE` at a time."""
        if len(self._requests) == 1:
            await self._run_turn(self._requests[0], caller, emit)
            return
        merger = _Merger(emit, self._requests)
        places = trio.CapacityLimiter(MAX_AT_ONCE)
        async with trio.open_nursery() as nursery:
            merger.scope = nursery.cancel_scope
            for at, request in enumerate(self._requests):
                take = partial(merger.emit, at * request.n)
                nursery.start_soon(self._run_one, places, request, caller, take)
        merger.end()

    async def _run_one(
        self, places: trio.CapacityLimiter, request: ChatRequest, caller: Caller, emit: Emit
    ) -> None:
        async with places:
            await self._run_turn(request, caller, emit)


class _Merger:
    """Merges the events of several turns."""

    def __init__(self, emit: Emit, requests: Sequence[ChatRequest]) -> None:
        self._emit = emit
        self._is_counting = requests[0].continuous_usage
        self._num_unfinished = sum(request.n for request in requests)
        self._has_started = False
        self._has_failed = False
        self._usages: dict[int, Usage] = {}
        self.scope = trio.CancelScope()

    def emit(self, first_index: int, event: TurnEvent) -> None:
        """Pass on an event of the turn whose choices begin at `first_index`."""
        if self._has_failed:
            return
        match event:
            case TextDelta() | ReasoningDelta() | ToolCallDelta() | Embedded() | Finished():
                index = event.index + first_index
                self._num_unfinished -= isinstance(event, Finished)
                self._emit(msgspec.structs.replace(event, index=index))
            case Usage():
                self._usages[first_index] = event
                if self._is_counting and self._num_unfinished:
                    self._emit(self._sum())
            case Started():
                if not self._has_started:
                    self._has_started = True
                    self._emit(event)
            case Failed():
                self._has_failed = True
                self._emit(event)
                self.scope.cancel()
            case _:
                self._emit(event)

    def end(self) -> None:
        """All turns are over: emit the sum of their usage."""
        if self._usages and not self._has_failed:
            self._emit(self._sum())

    def _sum(self) -> Usage:
        usages = self._usages.values()
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        )
