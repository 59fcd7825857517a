"""A thread that sends a heartbeat and the loop's state every 200 ms.

Owns the shared status: plain attributes written by the loop's thread only, so that a heartbeat
costs the loop nothing. Must not know what a step does.
"""

import threading
import time
from dataclasses import dataclass
from typing import Final

from housekeeping.sizes import bytes_text
from protocol.messages import CacheUse, DraftResults
from workers.ipc import SUPERVISOR, Heartbeat, StartProgress, encode_control
from workers.loop.channel import EngineChannel

BEAT_EVERY_S: Final = 0.2
_SHOWN_PLACES: Final = 4


@dataclass(slots=True)
class EngineStatus:
    """The loop's state. One writer (the loop), one reader (the heartbeat)."""

    step: int = 0
    busy: bool = False
    phase: str = ""
    longest_step_s: float = 0.0
    expected_step_s: float = 0.0
    drafting: str = ""
    cache: str = ""


def cache_line(use: CacheUse, recomputed_tokens: int = 0) -> str:
    """A line for people about the host tier of an engine's prefix cache."""
    spoilt = f", {use.spoilt} spoilt and not used" if use.spoilt else ""
    rate = f" at {bytes_text(int(use.load_bytes_per_s))}/s" if use.load_bytes_per_s else ""
    shares = ""
    if use.prompt_tokens:
        on_card = (use.hit_tokens - use.loaded_tokens) / use.prompt_tokens
        on_host = use.loaded_tokens / use.prompt_tokens
        shares = f" ({on_card:.0%} on the card, {on_host:.0%} on the host)"
    again = f"; {recomputed_tokens:,} computed again after evictions" if recomputed_tokens else ""
    return (
        f"{bytes_text(use.held_bytes)} of {bytes_text(use.num_bytes)} hold prefixes, "
        f"{bytes_text(use.stored_bytes)} stored and {bytes_text(use.loaded_bytes)} loaded{rate} "
        f"since the start; {use.hit_tokens:,} tokens of prompts found{shares}, "
        f"{use.loaded_tokens:,} of them loaded{spoilt}{again}"
    )


def drafting_line(figures: DraftResults, warning: str = "") -> str:
    """A line for people about the gain of an engine's drafts; empty before the first draft."""
    verified, accepted = sum(figures.verified), sum(figures.accepted)
    if not verified:
        return ""
    places = zip(figures.accepted, figures.verified, strict=False)
    rates = [f"{done / tried:.0%}" for done, tried in places if tried][:_SHOWN_PLACES]
    return (
        f"{figures.drafter}: {figures.tokens / figures.passes:.2f} tokens a pass, "
        f"{accepted / verified:.0%} of {verified} drafts accepted ({'/'.join(rates)} by place), "
        f"{figures.depth:.1f} a pass lately, {figures.gain:.2f} times as fast"
        f"{warning and f'; {warning}'}"
    )


class PhaseClock:
    """The time of each phase of a start, until the next one began. Times are arguments."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._phase: str | None = None
        self._since = 0.0

    def enter(self, phase: str, now: float) -> None:
        """Note that the phase begins, or continues."""
        if self._phase is not None:
            self._seconds[self._phase] += now - self._since
        self._seconds.setdefault(phase, 0.0)
        self._phase, self._since = phase, now

    def seconds(self, now: float) -> tuple[tuple[str, float], ...]:
        """Every phase in the order of its first report; the last one until now."""
        if self._phase is not None:
            self.enter(self._phase, now)
        return tuple(self._seconds.items())


class Reporter:
    """Declares long operations: `report(phase, fraction, detail)` before each of them."""

    def __init__(self, channel: EngineChannel, status: EngineStatus) -> None:
        self._channel = channel
        self._status = status
        self._clock = PhaseClock()

    def seconds(self) -> tuple[tuple[str, float], ...]:
        """The time of each phase, in order."""
        return self._clock.seconds(time.monotonic())

    def __call__(self, phase: str, fraction: float, detail: str = "") -> None:
        self._clock.enter(phase, time.monotonic())
        self._status.phase = phase
        progress = StartProgress(phase, fraction, detail)
        self._channel.send([(SUPERVISOR, encode_control(progress))])


def start_heartbeats(channel: EngineChannel, status: EngineStatus) -> None:
    """Send heartbeats from a daemon thread until the process ends."""
    tick = threading.Event()

    def send_all() -> None:
        while not tick.wait(BEAT_EVERY_S):
            message = Heartbeat(
                status.step,
                status.busy,
                status.phase,
                status.longest_step_s,
                status.expected_step_s,
                status.drafting,
                status.cache,
            )
            channel.send([(SUPERVISOR, encode_control(message))])

    threading.Thread(target=send_all, name="heartbeat", daemon=True).start()
