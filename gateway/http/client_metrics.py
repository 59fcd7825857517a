"""Prompt tokens by client program, and how many of them were cached.

Owns how many names of programs are counted. These counts show a program that changes the beginning
of its prompts: its share of cached tokens is small. Must not know how requests run.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.api import Usage

MAX_CLIENTS: Final = 32
"""Names come from clients; any beyond this number is counted as `other`."""


class ClientTokens(Collector):
    """Tokens of prompts by client."""

    def __init__(self, unix_time: Callable[[], float] = time.time) -> None:
        self._unix_time = unix_time
        self._counts: dict[str, list[int]] = {}
        self._since: dict[str, float] = {}

    def totals(self) -> dict[str, tuple[int, int]]:
        """Prompt tokens and cached ones, by client."""
        return {client: (prompt, cached) for client, (prompt, cached) in self._counts.items()}

    def count(self, client: str, usage: Usage) -> None:
        """Add the prompt of a request of that client."""
        counts = self._counts.get(client)
        if counts is None:
            if len(self._counts) >= MAX_CLIENTS - 1:
                client = "other"
            counts = self._counts.setdefault(client, [0, 0])
            self._since.setdefault(client, self._unix_time())
        counts[0] += usage.prompt_tokens
        counts[1] += usage.cached_tokens

    def collect(self) -> Iterator[Metric]:
        """The metric family."""
        tokens = CounterMetricFamily(
            "herma_client_tokens",
            "Prompt tokens by client program; cached ones are part of the prompt.",
            labels=("client", "kind"),
        )
        for client, counts in self._counts.items():
            for kind, count in zip(("prompt", "cached"), counts, strict=True):
                tokens.add_metric((client, kind), count, created=self._since[client])
        yield tokens
