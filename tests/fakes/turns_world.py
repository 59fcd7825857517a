"""A card, its workers and their requests in virtual time, under the policy of turns.

Owns the simulation: requests arrive, are served by workers that are awake, and every change takes
its time and its memory. Each step checks that the card holds no more than it has.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from workers.turns import Member, MemberState, PauseWatch, SharedCard, TurnPolicy


@dataclass
class Model:
    """One worker with its own model; `places` requests run at once, each for `service_s`."""

    name: str
    awake_bytes: int
    wake_s: float = 2.0
    sleep_s: float = 1.0
    service_s: float = 0.5
    places: int = 8
    asleep_bytes: int = 0
    is_always: bool = False
    idle_s: float | None = None
    is_measured: bool = True
    state: MemberState = "asleep"
    since: float = 0.0
    idle_since: float = 0.0
    queue: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    is_closing: bool = False

    def member(self, now: float) -> Member:
        """What the policy sees."""
        return Member(
            self.name,
            self.state,
            is_always=self.is_always,
            awake_bytes=self.awake_bytes if self.is_measured else None,
            asleep_bytes=self.asleep_bytes,
            wake_s=self.wake_s if self.is_measured else None,
            sleep_s=self.sleep_s if self.is_measured else None,
            waiting=len(self.queue),
            running=len(self.running),
            waited_s=sum(now - at for at in self.queue),
            oldest_at=min((*self.queue, *self.running), default=None),
            since=self.since,
            idle_since=self.idle_since,
            idle_s=self.idle_s,
        )

    @property
    def change_s(self) -> float:
        return self.wake_s + self.sleep_s

    @property
    def bytes_now(self) -> int:
        return self.asleep_bytes if self.state == "asleep" else self.awake_bytes


class TurnsWorld:
    """Runs until no event is left. `served` has (model, came, began) of each request, `switches`
    the names of those that woke, in order.
    """

    def __init__(self, models: list[Model], total_bytes: int, other_bytes: int = 0) -> None:
        self.models = {model.name: model for model in models}
        self.card = SharedCard(total_bytes, other_bytes)
        self.policy = TurnPolicy()
        self.now = 0.0
        self.served: list[tuple[str, float, float]] = []
        self.switches: list[str] = []
        self.sleeps: list[tuple[float, str, str]] = []
        self._events: list[tuple[float, int, str, str]] = []
        self._numbers = itertools.count()
        self._pauses = PauseWatch()
        self._next_at: float | None = None
        self._loops: dict[str, tuple[float, Iterator[tuple[str, float]]]] = {}
        for model in models:
            if model.is_always:
                model.state = "awake"

    def at(self, when: float, what: str, name: str) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what, name))

    def arrive(self, when: float, name: str, count: int = 1) -> None:
        for _ in range(count):
            self.at(when, "arrive", name)

    def loop(self, at: float, steps: Iterable[tuple[str, float]]) -> None:
        """A client that asks one model after another, and uses each alone meanwhile: the models'
        names, each with the pause behind its answer.
        """
        self._step(at, iter(steps))

    def _step(self, after: float, steps: Iterator[tuple[str, float]]) -> None:
        if (step := next(steps, None)) is not None:
            name, pause_s = step
            assert name not in self._loops
            self._loops[name] = pause_s, steps
            self.arrive(after, name)

    def run(self) -> None:
        while self._events:
            when, _, what, name = heapq.heappop(self._events)
            self.now = when
            self._happen(what, name)
            while self._events and self._events[0][0] <= self.now:
                _, _, what, name = heapq.heappop(self._events)
                self._happen(what, name)
            self._decide()

    def _happen(self, what: str, name: str) -> None:
        model = self.models.get(name)
        if model is None:
            return
        match what:
            case "arrive":
                model.queue.append(self.now)
            case "end":
                model.running.pop(0)
                if not model.running and not model.queue:
                    model.idle_since = self.now
                if name in self._loops:
                    pause_s, steps = self._loops.pop(name)
                    self._step(self.now + pause_s, steps)
                if model.is_closing and not model.running:
                    self.at(self.now + model.sleep_s, "slept", name)
            case "slept":
                model.is_closing = False
                model.state, model.since = "asleep", self.now
            case "woke":
                model.state, model.since, model.is_measured = "awake", self.now, True
                model.idle_since = self.now
        has_work = bool(model.queue or model.running)
        self._pauses.see(name, model.state, has_work=has_work, uses=0, now=self.now)
        self._serve(model)

    def _serve(self, model: Model) -> None:
        if model.state != "awake":
            return
        while model.queue and len(model.running) < model.places:
            came = model.queue.pop(0)
            self.served.append((model.name, came, self.now))
            model.running.append(came)
            self.at(self.now + model.service_s, "end", model.name)

    def _decide(self) -> None:
        members = [
            replace(model.member(self.now), pauses=self._pauses.counts(name))
            for name, model in self.models.items()
        ]
        plan = self.policy.decide(members, self.card, self.now)
        for name in plan.sleep:
            model = self.models[name]
            assert model.state == "awake"
            assert not model.is_always
            model.state, model.since, model.is_closing = "falling asleep", self.now, True
            self.sleeps.append((self.now, name, self.policy.promised or ""))
            if not model.running:
                self.at(self.now + model.sleep_s, "slept", name)
        for name in plan.wake:
            model = self.models[name]
            assert model.state == "asleep"
            model.state, model.since = "waking", self.now
            self.switches.append(name)
            self.at(self.now + model.wake_s, "woke", name)
        held = sum(model.bytes_now for model in self.models.values()) + self.card.other_bytes
        assert self.card.total_bytes is not None
        assert held <= self.card.total_bytes, "the card holds more than it has"
        if plan.next_at is not None and plan.next_at != self._next_at:
            self._next_at = plan.next_at
            self.at(max(plan.next_at, self.now + 1e-6), "look", "")
