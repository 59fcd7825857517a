"""The resumption of a streamed chat: after an upstream broke its answer off, another one goes on.

Owns what the client has got, whether another upstream may go on, and what that one is asked. Tokens
of our own workers resume elsewhere (`sequence_run.py`); this is for upstreams of text. Must not
know which upstream is asked next, or HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, final

import msgspec

from config import FallbackConfig, ParamsConfig, ProviderConfig
from gateway.api import ApiError, ChatRequest, Usage, connection_lost
from gateway.telemetry import EventFeed, GatewayCounters, Resumed
from gateway.turn.estimated_usage import UsageEstimate
from gateway.upstream import (
    CannotContinue,
    ProviderCut,
    SentAnswer,
    continued,
    field_at,
    form_at,
    is_same_model,
    needs_dropped,
)
from protocol.prefill import PrefillForm

MAX_CUTS: Final = 3
"""An answer that was broken off so often ends."""

_log = logging.getLogger("herma.turn")


@final
class Resumption:
    """One chat. `name` identifies it in events; `estimate` makes what counts for upstreams that
    do not, and `estimated` is what it has counted.
    """

    def __init__(
        self,
        request: ChatRequest,
        counters: GatewayCounters,
        feed: EventFeed,
        estimate: Callable[[], UsageEstimate],
    ) -> None:
        self._estimate = estimate
        self.estimated: Usage | None = None
        self._request = request
        self._counters = counters
        self._feed = feed
        self._cut_there = ""
        self._num_cuts = 0
        self._words = ""
        self.sent = SentAnswer()
        self.name = ""

    async def estimate(self, said: str, num_events: int = 0) -> Usage:
        """The usage of an answer that says `said`, of which the upstream counts nothing."""
        self.estimated = await self._estimate().of(said, num_events)
        return self.estimated

    @property
    def raw(self) -> dict[str, Any]:
        """The body of the client's request."""
        return self._request.raw

    @property
    def is_cut(self) -> bool:
        """Whether the answer has begun and broken off, so that no other may begin it again."""
        return self._num_cuts > 0

    def note_cut(self, server: str, error: ProviderCut) -> bool:
        """The upstream `server` broke the answer off. Returns whether another one may go on."""
        self._num_cuts += 1
        self._cut_there = server
        self._words = self._words or error.words
        if not self._request.stream or self._num_cuts >= MAX_CUTS:
            return False
        made = continued(self._request.raw, self.sent, "continue_final_message")
        if isinstance(made, CannotContinue):
            _log.info("an answer of %s cannot go on elsewhere: %s", server, made.why)
            return False
        return True

    def lost(self) -> ApiError:
        """The error of an answer with which no upstream goes on."""
        return connection_lost(self._words)

    def asked(
        self, form: PrefillForm | None, params: ParamsConfig, reasoning_field: str | None
    ) -> ChatRequest | None:
        """The request to an upstream that continues in `form`; None if it does not go on."""
        if form is None or needs_dropped(form, params.drop):
            return None
        made = continued(self._request.raw, self.sent, form, reasoning_field)
        if isinstance(made, CannotContinue):
            return None
        return msgspec.structs.replace(self._request, raw=made)

    def asked_of_provider(
        self, table: ProviderConfig, target: FallbackConfig
    ) -> ChatRequest | None:
        """The request to a provider; None if the provider cannot go on with the answer. A known
        provider can only if it has the same model; `continues` in its table says that it has.
        """
        form: PrefillForm | None
        if table.continues == "auto":
            is_same = is_same_model(self.sent.upstream_model, target.model)
            form = form_at(table.base_url) if is_same else None
        else:
            form = None if table.continues == "off" else table.continues
        field = table.reasoning_field or field_at(table.base_url)
        return self.asked(form, target.params, field)

    def note_resumed(self, model: str) -> None:
        """Note that the first part behind the cut has come."""
        self._counters.sequences_resumed += 1
        reason, tokens = "its stream was cut", self.sent.tokens
        self._feed.publish(Resumed(self.name, model, self._cut_there, reason, tokens))
