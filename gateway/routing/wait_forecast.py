"""The wait forecast: how much longer a waiting request will wait.

Owns the forecast for Retry-After and the dashboard; no decision depends on it. It simulates the
queue on the workers, adds the delay by requests that will arrive and pass, and corrects by how
earlier forecasts turned out. Must not know how requests are placed.

    start    In the order of the queue, each prompt takes the worker where its prefill would end
             first. It starts there when the prefill ahead is short enough and enough keys and
             values and a place are free. Running sequences free theirs evenly over a mean service.
    passing  A later request goes first if it is due earlier. Since the clock of the queue moves, a
             kind of request that is due earlier by `late` passes for `late / rate` seconds only.
             Each delays by its prefill; where room is scarcer than time, by up to its room.
    gain     Real over forecast waits, as a moving mean of logarithms: answers are longer or shorter
             than expected, and requests wait for one worker although others have room.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from gateway.routing.admission_queue import Waiting
from gateway.routing.chain_tree import ChainTree
from gateway.routing.fair_shares import FairShares, cost_of
from gateway.routing.prefill_rate import PRIOR_TOKENS_PER_S, PrefillRateEstimator
from gateway.routing.worker import STEPS_AHEAD, Worker

REFRESH_S: Final = 0.25
"""A simulation is used for this time: one of 256 requests on 16 workers takes 10 ms."""
NOTE_S: Final = 1.0
"""The interval at which forecasts are noted, to compare them with the real waits."""

_NUM_ARRIVALS: Final = 64
"""This many of the latest requests that had to wait stand for those that will arrive."""
_FEWEST_ARRIVALS: Final = 8
_LEARNED: Final = 0.005
_MOST_GAIN: Final = 1.5
"""The bound on the logarithm of a real over a forecast wait: e^1.5 = 4.5."""
_LEAST_SERVICE_S: Final = 0.001
_LEAST_LEARNED_S: Final = 1.0
"""Shorter waits are not learned from: Retry-After is in whole seconds."""


class Lane(msgspec.Struct):
    """A worker in the simulation. Its prefills are over in `long_s` for a long and in `short_s` for
    a short prompt; a prompt is sent `ahead_s` before. Tokens of keys and values and places are
    free, and become free at the given rates. The last prompt was sent there at `last_s`. All times
    are in seconds from the start of the simulation.
    """

    rate: PrefillRateEstimator
    long_s: float
    short_s: float
    most_beside: int
    ahead_s: float
    free_tokens: float
    tokens_per_s: float
    free_places: float
    places_per_s: float
    last_s: float = 0.0

    def prefill_s(self, num_cached: int, num_fresh: int) -> float:
        return self.rate.seconds(num_cached, num_fresh) or num_fresh / PRIOR_TOKENS_PER_S

    def start_s(self, num_fresh: int, num_tokens: int) -> float:
        """When a prompt can be sent that has `num_fresh` tokens to compute and needs room for
        `num_tokens`.
        """
        free_s = self.short_s if num_fresh <= self.most_beside else self.long_s
        start_s = max(self.last_s, free_s - self.ahead_s)
        if self.free_tokens < num_tokens and self.tokens_per_s > 0:
            start_s = max(start_s, (num_tokens - self.free_tokens) / self.tokens_per_s)
        if self.free_places < 1 and self.places_per_s > 0:
            start_s = max(start_s, (1 - self.free_places) / self.places_per_s)
        return start_s

    def take(self, start_s: float, num_fresh: int, num_tokens: int, own_s: float) -> None:
        """Send a prompt at `start_s`. Mirrors `Worker.take`."""
        self.last_s = start_s
        self.free_tokens -= num_tokens
        self.free_places -= 1
        long_s, short_s = max(start_s, self.long_s), max(start_s, self.short_s)
        self.long_s = long_s + own_s
        if num_fresh > self.most_beside:
            self.short_s = long_s
        else:
            self.short_s = min(short_s + 2 * own_s, self.long_s)


class ForecastPrompt(msgspec.Struct, frozen=True):
    """A request in the simulation. For each lane, `cached` tokens need not be computed there, and
    `resident` ones of them need no room because running prompts have them. `charge` is what its key
    will be charged.
    """

    ticket: int
    key: str
    tokens: int
    output_tokens: int
    cached: Sequence[int]
    resident: Sequence[int]
    charge: float


class Start(msgspec.Struct, frozen=True):
    """When a prompt starts if no other passes it. `charged` is what its key is charged before that.
    `lacks_room`: room for keys and values is scarcer than time for prefill.
    """

    at_s: float
    charged: float
    lacks_room: bool


def starts(lanes: Sequence[Lane], prompts: Iterable[ForecastPrompt]) -> dict[int, Start]:
    """Simulate the queue. Returns the start of each ticket in seconds from now; changes `lanes`."""
    found: dict[int, Start] = {}
    charged: dict[str, float] = {}
    work_s = num_tokens = 0.0
    num_free = sum(lane.free_tokens for lane in lanes)
    tokens_per_s = sum(lane.tokens_per_s for lane in lanes)
    for prompt in prompts:
        best: tuple[float, float, Lane, int, int, float] | None = None
        for lane, cached, resident in zip(lanes, prompt.cached, prompt.resident, strict=True):
            fresh = max(1, prompt.tokens - cached)
            room = prompt.tokens - resident + prompt.output_tokens
            own_s = lane.prefill_s(prompt.tokens - fresh, fresh)
            start_s = lane.start_s(fresh, room)
            free_s = lane.short_s if fresh <= lane.most_beside else lane.long_s
            end_s = max(start_s, free_s) + own_s
            if best is None or end_s < best[0]:
                best = end_s, start_s, lane, fresh, room, own_s
        if best is None:
            break
        _, start_s, lane, fresh, room, own_s = best
        lacking = num_tokens + room - num_free
        lacks_room = lacking > 0 and lacking * len(lanes) > work_s * tokens_per_s
        paid = charged.get(prompt.key, 0.0)
        found[prompt.ticket] = Start(start_s, paid, lacks_room)
        lane.take(start_s, fresh, room, own_s)
        charged[prompt.key] = paid + prompt.charge
        work_s, num_tokens = work_s + own_s, num_tokens + room
    return found


def passed_s(
    start_s: float, late: float, rate: float, newcomers: Sequence[tuple[float, float]]
) -> float:
    """The start, in seconds, of a request that `newcomers` pass. Each kind of newcomers is a pair:
    its own `late`, and the seconds of delay that it causes per second; the largest `late` first.
    `rate` is the speed of the clock.

    A kind delays until the clock has moved so far that it no longer passes. So the wait that is
    left is a piecewise linear function of time, and the start is its zero.
    """
    if rate <= 0:
        return start_s
    kinds = [((late - own) / rate, delay) for own, delay in newcomers if own < late]
    # How the seconds of wait that are left change with each second that passes.
    slope = sum(delay for _, delay in kinds) - 1.0
    at_s, left_s = 0.0, start_s
    for until_s, delay in kinds:
        if slope < 0 and left_s <= (at_s - until_s) * slope:
            break
        left_s += slope * (until_s - at_s)
        at_s, slope = until_s, slope - delay
    return at_s - left_s / slope if slope < 0 else at_s


class _Arrival(msgspec.Struct, frozen=True):
    """A request that had to wait. `late` is how far its key's clock was from its due time then."""

    at: float
    late: float
    tokens: int
    fresh_tokens: int


class _Play(msgspec.Struct, frozen=True):
    """The result of a simulation. `in_time` and `in_room` have for each kind of newcomers its
    `late` and the delay per second that it causes, by its prefill and by the room that it takes.
    `charge_per_s` is what all newcomers are charged.
    """

    made_at: float
    starts: dict[int, Start]
    in_time: list[tuple[float, float]]
    in_room: list[tuple[float, float]]
    charge_per_s: float


class WaitForecast:
    """The forecasts of one model's queue."""

    def __init__(self) -> None:
        self._arrivals: deque[_Arrival] = deque(maxlen=_NUM_ARRIVALS)
        self._gain = 0.0
        self._play = _Play(-math.inf, {}, [], [], 0.0)

    def arrived(self, waiting: Waiting, late: float, now: float) -> None:
        """A request has to wait; it is due when its key's clock has moved by `late`."""
        tokens = waiting.request.prompt_tokens
        self._arrivals.append(_Arrival(now, late, tokens, waiting.fresh_tokens))

    def age_s(self, now: float) -> float:
        """The age of the last simulation."""
        return now - self._play.made_at

    def play(
        self,
        order: Sequence[Waiting],
        workers: Sequence[Worker],
        block_size: int,
        expected_output: int,
        service_s: float,
        now: float,
    ) -> None:
        """Simulate the queue. `service_s` is the mean time for which a request has its place.
        Without a worker the forecast is empty.
        """
        if not workers:
            self._play = _Play(now, {}, [], [], 0.0)
            return
        lanes = [_lane(worker, max(service_s, _LEAST_SERVICE_S), now) for worker in workers]
        tokens_per_s = sum(lane.tokens_per_s for lane in lanes)
        arrivals = sorted(self._arrivals, key=lambda one: one.late, reverse=True)
        span_s = now - self._arrivals[0].at if len(arrivals) >= _FEWEST_ARRIVALS else 0.0
        per_s = 1 / span_s if span_s > 0 else 0.0
        in_time, in_room, charge = [], [], 0
        for one in arrivals if per_s else ():
            num_cached = one.tokens - one.fresh_tokens
            own_s = sum(lane.prefill_s(num_cached, one.fresh_tokens) for lane in lanes)
            room = one.tokens + expected_output
            in_time.append((one.late, own_s / len(lanes) ** 2 * per_s))
            in_room.append((one.late, room / tokens_per_s * per_s if tokens_per_s else 0.0))
            charge += cost_of(one.fresh_tokens, expected_output)
        found = starts(lanes, _prompts(order, workers, block_size, expected_output))
        self._play = _Play(now, found, in_time, in_room, charge * per_s)

    def waits_s(
        self, order: Sequence[Waiting], shares: FairShares
    ) -> Iterator[tuple[Waiting, float]]:
        """Seconds until each request of `order` has a place, by the last simulation."""
        gain = math.exp(self._gain)
        for waiting, wait_s in self._uncorrected_s(order, shares):
            yield waiting, wait_s * gain

    def note(self, order: Sequence[Waiting], shares: FairShares, now: float) -> None:
        """Keep the forecast of each request that has none yet; `placed` compares it."""
        for waiting, wait_s in self._uncorrected_s(order, shares):
            if waiting.forecast is None:
                waiting.forecast = now, wait_s

    def placed(self, waiting: Waiting, now: float) -> None:
        """A request has its place: learn from the error of its noted forecast."""
        if waiting.forecast is None:
            return
        noted_at, forecast_s = waiting.forecast
        real_s = now - noted_at
        if min(real_s, forecast_s) >= _LEAST_LEARNED_S:
            error = max(-_MOST_GAIN, min(_MOST_GAIN, math.log(real_s / forecast_s)))
            self._gain += _LEARNED * (error - self._gain)

    def _uncorrected_s(
        self, order: Sequence[Waiting], shares: FairShares
    ) -> Iterator[tuple[Waiting, float]]:
        play = self._play
        start = Start(0.0, 0.0, lacks_room=False)
        for waiting in order:
            # A request that arrived after the simulation gets the start of the one ahead of it.
            start = play.starts.get(waiting.request.ticket, start)
            if start.at_s <= 0:
                yield waiting, 0.0
                continue
            clock, num_active = shares.clock(waiting.request.key)
            charge_per_s = start.charged / start.at_s if start.charged else play.charge_per_s
            late, rate = waiting.due - clock, charge_per_s / num_active
            wait_s = passed_s(start.at_s, late, rate, play.in_time)
            if start.lacks_room:
                # An upper bound: not all newcomers take room on a worker that this request waits
                # for. The forecast is the geometric mean of both bounds.
                most_s = passed_s(start.at_s, late, rate, play.in_room)
                wait_s = math.sqrt(wait_s * max(wait_s, most_s))
            yield waiting, wait_s


def _lane(worker: Worker, service_s: float, now: float) -> Lane:
    """The worker at the start of the simulation."""
    engine = worker.engine
    num_running, reserved = len(worker.reservations), worker.kv_reserved_tokens
    long_s, short_s = worker.free_in_s(now)
    return Lane(
        rate=worker.prefill_rate,
        long_s=long_s,
        short_s=short_s,
        most_beside=worker.most_beside,
        ahead_s=STEPS_AHEAD * worker.step_s,
        free_tokens=(engine.kv_tokens if engine is not None else 0) - reserved,
        tokens_per_s=reserved / service_s,
        free_places=worker.places - num_running,
        places_per_s=num_running / service_s,
    )


def _prompts(
    order: Sequence[Waiting], workers: Sequence[Worker], block_size: int, expected_output: int
) -> Iterable[ForecastPrompt]:
    """The queue as prompts, in order. Blocks that a prompt shares with an earlier one count as
    cached on every lane.
    """
    ahead = ChainTree()
    for waiting in order:
        request, held = waiting.request, waiting.held
        shared = len(request.digests) - ahead.enter(request.digests)
        resident = [worker.chains.depth(request.digests) for worker in workers]
        cached = [
            max(shared, depth, held.get(worker.worker_id, 0))
            for worker, depth in zip(workers, resident, strict=True)
        ]
        output_tokens = max(1, min(request.max_tokens, expected_output))
        yield ForecastPrompt(
            request.ticket,
            request.key,
            request.prompt_tokens,
            output_tokens,
            [block_size * blocks for blocks in cached],
            [block_size * blocks for blocks in resident],
            cost_of(waiting.fresh_tokens, output_tokens),
        )
