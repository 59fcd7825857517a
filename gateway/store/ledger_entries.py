"""What the ledger is told.

Owns the values that cross between the books in memory and the ledger on disk. Must not know SQL
nor how the figures came about. Days are UTC dates as text (2026-11-21), amounts micro-units.
"""

import msgspec


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """The most that one cloud request can use and cost, held before it is sent. `is_priced` False:
    the provider's price is unknown, and `cost` is 0.
    """

    id: int
    day: str
    key: str
    model: str
    provider: str
    prompt_tokens: int
    completion_tokens: int
    cost: int
    is_priced: bool


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One request that is over. `provider` "" is our own workers. `is_settled` False: its end was
    never seen, so tokens and cost are what it can have been at most.
    """

    day: str
    key: str
    model: str
    provider: str
    is_settled: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int
    is_priced: bool
    requests: int = 1


class LocalUse(msgspec.Struct, gc=False):
    """What our own workers did so far on one day for one key and model; it grows."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    requests: int = 0

    def add(self, other: "LocalUse") -> None:
        """That was done too."""
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens
        self.requests += other.requests

    def entry(self, day: str, key: str, model: str) -> Entry:
        """As the ledger takes it."""
        return Entry(
            day=day,
            key=key,
            model=model,
            provider="",
            is_settled=True,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            cost=0,
            is_priced=True,
            requests=self.requests,
        )


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """A reservation is over. `entry` None: the provider certainly charges nothing."""

    reservation_id: int
    entry: Entry | None


class DayTotal(msgspec.Struct, frozen=True, gc=False):
    """What one key has spent at one provider on one day, unsettled requests included."""

    day: str
    key: str
    provider: str
    cost: int
