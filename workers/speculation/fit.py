"""What speculation has learned about a model and a drafter, for the next engine.

Owns its form and its validation. Must not know files.
"""

from __future__ import annotations

from typing import Annotated, final

import msgspec

from workers.speculation.offers import Rate
from workers.speculation.pass_cost import FINE_SIZES
from workers.speculation.taking_in import Expense

Seconds = Annotated[float, msgspec.Meta(gt=0.0)]
Place = Annotated[int, msgspec.Meta(ge=0)]
Times = dict[Place, Seconds]
"""Seconds by a size's index in the sizes of a table."""


@final
class Fit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measurements of an engine.

    - `ahead` and `awaiting`: the two tables of step times (see `SpeculationPolicy`), whose sizes
      are `ahead_sizes` and `sizes`.
    - `drafting`: times of draft passes, by depth, then by their number of sequences.
    - `places`: rates of a network's drafts by place. `matches`: rates of drafts from text, by
      source and length of the match.
    - `expense`: on a host, the cost of taking prompts in.
    """

    ahead_sizes: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    ahead: Times = {}
    awaiting: Times = {}
    drafting: dict[Place, Times] = {}
    places: tuple[Rate, ...] = ()
    matches: tuple[tuple[Rate, ...], ...] = ()
    expense: Expense = Expense()

    def __post_init__(self) -> None:
        for rate in (*self.places, *(rate for row in self.matches for rate in row)):
            if not rate.right >= 0.0 or not 0.0 < rate.tried < 1e9:
                raise ValueError(f"{rate} is no rate")
        for mean in self.expense:
            if not 0.0 <= mean.total < 1e9 or not 0.0 <= mean.number < 1e9:
                raise ValueError(f"{mean} is no mean")
        for sizes, times in ((self.ahead_sizes, self.ahead), (self.sizes, self.awaiting)):
            if max(times, default=0) >= max(1, len(sizes)):
                raise ValueError("there are times of more rows than there are sizes")
        if max([max(times, default=0) for times in self.drafting.values()], default=0) >= len(
            FINE_SIZES
        ):
            raise ValueError("there are draft passes of more sequences than there are sizes")

    def times(self, sizes: tuple[int, ...]) -> Times:
        """The times of steps that wait for tokens, if they are those of a table of `sizes`."""
        return self.awaiting if sizes == self.sizes else {}

    def times_ahead(self, sizes: tuple[int, ...]) -> Times:
        """The times of steps that run ahead, if they are those of a table of `sizes`."""
        return self.ahead if sizes == self.ahead_sizes else {}
