"""From marks to times: a fault noticed, its streams going on, the worker being back.

Pure: works on what clients and the gateway's log have noted. Must not know processes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.fleet import Event
from tests.chaos.traffic import Stream

NOTICES = ("engine fault", "worker lost")

IN_FLIGHT_S = 0.05
"""Text that was on its way when the gateway noticed may reach its client so much later."""


@dataclass(slots=True)
class Injection:
    """One fault and its effects; times in seconds since 1970, durations in seconds.

    `hit` are the streams that ran on the victim. `able_at`: from when on the victim could serve.
    `late_s`: the most that a sleeping thread of the harness was late, which no fault causes.
    """

    victim: str
    at: float
    hit: list[Stream]
    noticed_at: float | None = None
    able_at: float | None = None
    back_at: float | None = None
    resumed_at: list[float] = field(default_factory=list)
    late_s: float = 0.0
    load: float = 0.0

    @property
    def detect_s(self) -> float | None:
        """From the fault to the gateway's word of it."""
        return None if self.noticed_at is None else max(0.0, self.noticed_at - self.at)

    @property
    def resume_s(self) -> list[float]:
        """From that word to each hit stream's next text; prefill elsewhere is part of it."""
        if self.noticed_at is None:
            return []
        return [at - self.noticed_at for at in self.resumed_at]

    @property
    def rejoin_s(self) -> float | None:
        """From the moment at which the victim could serve to the first that a client has of it."""
        if self.able_at is None or self.back_at is None:
            return None
        return max(0.0, self.back_at - self.able_at)


def noticed_at(events: Sequence[Event], victim: str, since: float) -> float | None:
    """When the gateway first said that the victim's engine or link is gone."""
    times = (
        event.at
        for event in events
        if event.kind in NOTICES and event.worker == victim and event.at >= since
    )
    return min(times, default=None)


def back_at(
    streams: Sequence[Stream], hit: Sequence[Stream], victim: str, able_at: float
) -> float | None:
    """When clients first saw text of the victim again: of an answer that it began, or, if `hit` had
    to wait for it, of those.
    """
    begun = (s.times[0] for s in streams if s.worker == victim and s.times)
    went_on = (at for stream in hit for at in stream.times[-300:])
    return min((at for at in (*begun, *went_on) if at >= able_at), default=None)


def resumed_at(stream: Stream, injected_at: float, noticed_at: float) -> float | None:
    """When the stream's text went on: the end of the longest silence that had begun when the
    gateway noticed. None if the stream was over by then.
    """
    times = [at for at in stream.times if at >= injected_at - 1.0]
    gaps = [
        (later - earlier, later)
        for earlier, later in pairwise(times)
        if later > noticed_at and earlier < noticed_at + IN_FLIGHT_S
    ]
    return max(gaps)[1] if gaps else None


def median(values: Sequence[float]) -> float:
    """The lower middle one; NaN of nothing."""
    return sorted(values)[(len(values) - 1) // 2] if values else math.nan
