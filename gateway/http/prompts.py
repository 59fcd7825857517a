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
    ApiError,
    ChatRequest,
    ChoiceFinished,
    Embedded,
    Failed,
    PromptScored,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    TurnEvent,
    Usage,
    connection_lost,
)
from gateway.http.edge import Emit, RunTurn
from gateway.telemetry import RequestTrace
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


class PromptScoring:
    """Log-probabilities of prompts, before the answers that begin with them. `scores` has the
    scores of each prompt by its number.
    """

    def __init__(self, run_turn: RunTurn) -> None:
        self._run_turn = run_turn
        self._started: Started | None = None
        self._usage: Usage | None = None
        self._error: ApiError | None = None
        self.scores: dict[int, PromptScored] = {}

    async def run(self, requests: Sequence[ChatRequest], caller: Caller) -> None:
        """Compute all prompts. The traces and rates of the request count its answers only. Raises
        `ApiError` if one cannot be computed.
        """
        own = msgspec.structs.replace(caller, trace=RequestTrace(), charge=None)
        await EachPrompt(self._run_turn, requests).run(requests[0], own, self._take)
        if self._error is not None:
            raise self._error
        if len(self.scores) < len(requests):
            raise connection_lost()

    def replay(self, num_choices: int) -> RunTurn:
        """A turn of answers without a token, from the same worker."""

        async def run(_request: ChatRequest, _caller: Caller, emit: Emit) -> None:
            if self._started is None or self._usage is None:
                raise connection_lost()
            emit(self._started)
            for index in range(num_choices):
                emit(ChoiceFinished(index, "length"))
            emit(self._usage)

        return run

    def _take(self, event: TurnEvent) -> None:
        match event:
            case PromptScored(index):
                self.scores[index] = event
            case Started():
                self._started = event
            case Usage():
                self._usage = event
            case Failed(error):
                self._error = error
            case _:
                pass  # the events that follow the scores of a prompt add nothing


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
            case (
                TextDelta()
                | ReasoningDelta()
                | ToolCallDelta()
                | Embedded()
                | PromptScored()
                | ChoiceFinished()
            ):
                index = event.index + first_index
                self._num_unfinished -= isinstance(event, ChoiceFinished)
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
