"""The life of a worker's engine: its states, and what leads from one to another.

Owns the table of states, the words in which each is shown and refused, and the verdict on a death.
Must not know processes, gateways or clocks. `diagram` prints the table for docs/architecture.md.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, final

from protocol.control_messages import State as ShownState
from protocol.errors import ConfigError
from protocol.life_tables import LifeTable
from protocol.messages import RejectReason
from workers.supervisor.hold import Hold
from workers.supervisor.restart_policy import RestartPolicy


class State(Enum):
    """Where an engine is in its life."""

    WAITING = auto()
    """No process. The next start is due after the back-off, for the group or for free memory."""
    STARTING = auto()
    """The process loads its model."""
    PROBING = auto()
    """The model is loaded. The tokens of the health probe are due."""
    READY = auto()
    """It serves gateways."""
    YIELDING = auto()
    """It finishes its sequences, and is held afterwards."""
    HELD = auto()
    """It could serve, and is kept from gateways while the worker's version changes."""
    DRAINING = auto()
    """It finishes its sequences, and is replaced afterwards."""
    REPLACING = auto()
    """It was asked to end, because the next engine is to follow."""
    ENDING = auto()
    """It is dead by itself, and is reaped and cleaned up after."""
    LINGERING = auto()
    """It was killed, gateways know so, and the kernel does not let its process go yet."""
    STOPPED = auto()
    """No process, and none follows until an operator asks for it."""
    DROWSY = auto()
    """It finishes its sequences, and falls asleep afterwards."""
    FALLING_ASLEEP = auto()
    """Its process ends."""
    ASLEEP = auto()
    """No process, and no memory of the card. The next turn starts one."""
    LEAVING = auto()
    """The worker ends, and its engine with it."""


class Event(Enum):
    """What happens to an engine, or is asked of it."""

    START = "a process is spawned"
    LOADED = "its model is loaded"
    PROVEN = "tokens came"
    HOLD = "a hold begins"
    YIELDED = "its sequences are over"
    UNHOLD = "the hold ends"
    RESTART = "a restart is asked for"
    RESTART_NOW = "a restart at once is asked for"
    DRAINED = "the drain is over"
    EXITED = "the process has ended"
    LINGERS = "the killed process stays"
    RETRY = "another start may help"
    GIVE_UP = "no start can help"
    SLEEP = "its turn is over"
    RESTED = "it has nothing left to do"
    SLEPT = "its memory is free"
    LEAVE = "the worker ends"


_UNPROVEN: Final = (State.STARTING, State.PROBING)
OVER: Final = (State.ENDING, State.LINGERING)
"""The process is dead by itself, and the verdict on its death is due."""
DRAINS: Final = (State.YIELDING, State.DRAINING, State.DROWSY)
"""The engine finishes its sequences and takes no others."""
SERVING: Final = frozenset((State.READY, State.YIELDING, State.HELD, State.DRAINING, State.DROWSY))
"""The engine has generated the health probe's tokens, and lives."""


def _of_sleep() -> dict[tuple[State, Event], State]:
    s, e = State, Event
    return {
        (s.READY, e.SLEEP): s.DROWSY,
        (s.WAITING, e.SLEEP): s.ASLEEP,  # between two tries to start
        (s.DROWSY, e.RESTED): s.FALLING_ASLEEP,
        (s.DROWSY, e.RESTART): s.DRAINING,
        (s.FALLING_ASLEEP, e.SLEPT): s.ASLEEP,
        (s.ASLEEP, e.START): s.STARTING,
    }


def _table() -> dict[tuple[State, Event], State]:
    s, e = State, Event
    moves = {
        (s.WAITING, e.START): s.STARTING,
        (s.STARTING, e.LOADED): s.PROBING,
        (s.STARTING, e.PROVEN): s.READY,  # a rank without an API: its head has answered
        (s.PROBING, e.PROVEN): s.READY,
        (s.READY, e.HOLD): s.YIELDING,
        (s.YIELDING, e.YIELDED): s.HELD,
        (s.YIELDING, e.UNHOLD): s.READY,
        (s.HELD, e.UNHOLD): s.READY,
        (s.STOPPED, e.UNHOLD): s.WAITING,
        (s.STOPPED, e.RESTART): s.WAITING,
        (s.STOPPED, e.RESTART_NOW): s.WAITING,
        (s.READY, e.RESTART): s.DRAINING,
        (s.HELD, e.RESTART): s.DRAINING,
        (s.DRAINING, e.DRAINED): s.REPLACING,
        (s.REPLACING, e.RETRY): s.WAITING,
    }
    moves |= _of_sleep()
    for state in _UNPROVEN:  # it has nothing to finish
        moves[state, e.RESTART] = s.REPLACING
    for state in (*_UNPROVEN, *SERVING):
        moves |= {
            (state, e.RESTART_NOW): s.REPLACING,
            (state, e.EXITED): s.ENDING,
            (state, e.LINGERS): s.LINGERING,
        }
    for state in OVER:
        moves |= {(state, e.RETRY): s.WAITING, (state, e.GIVE_UP): s.STOPPED}
    stays = {
        s.WAITING: (e.HOLD, e.UNHOLD, e.RESTART, e.RESTART_NOW),
        s.STARTING: (e.HOLD, e.UNHOLD),
        s.PROBING: (e.HOLD, e.UNHOLD, e.LOADED),
        s.DRAINING: (e.UNHOLD,),
        s.STOPPED: (e.HOLD, e.SLEEP),
        s.DROWSY: (e.SLEEP,),
        # An end that was asked for, or that changes nothing: what sleeps has nothing to lose.
        s.FALLING_ASLEEP: (e.SLEEP, e.EXITED, e.LINGERS),
        # A hold that has begun before, of a worker that waits for its turn, may end there.
        s.ASLEEP: (e.SLEEP, e.EXITED, e.LINGERS, e.UNHOLD, e.RESTART, e.RESTART_NOW),
        # Frames and ends of an engine that is to go change nothing more.
        s.REPLACING: (
            e.HOLD,
            e.UNHOLD,
            e.LOADED,
            e.PROVEN,
            e.EXITED,
            e.LINGERS,
            e.RESTART,
            e.RESTART_NOW,
        ),
        s.ENDING: (e.HOLD, e.UNHOLD, e.RESTART, e.RESTART_NOW),
        s.LINGERING: (e.HOLD, e.UNHOLD, e.RESTART, e.RESTART_NOW),
        s.LEAVING: tuple(e),
    }
    table = {(state, event): state for state, events in stays.items() for event in events}
    return table | moves | {(state, e.LEAVE): s.LEAVING for state in State}


_ASLEEP_WORDS: Final = "it is asleep or on its way; `herma worker wake` it first"
_REFUSED: Final = {
    (State.YIELDING, Event.HOLD): "the worker is draining",
    (State.DRAINING, Event.HOLD): "the worker is draining",
    (State.HELD, Event.HOLD): "the worker is held already",
    (State.LEAVING, Event.HOLD): "the worker is leaving",
    (State.DROWSY, Event.HOLD): _ASLEEP_WORDS,
    (State.FALLING_ASLEEP, Event.HOLD): _ASLEEP_WORDS,
    (State.ASLEEP, Event.HOLD): _ASLEEP_WORDS,
    (State.FALLING_ASLEEP, Event.RESTART): "it is falling asleep; its next wake can be a restart",
    (State.FALLING_ASLEEP, Event.RESTART_NOW): "it is falling asleep; ask again in a moment",
    (State.YIELDING, Event.RESTART): "it is draining and restarts then; --force restarts at once",
    (State.DRAINING, Event.RESTART): "it is draining and restarts then; --force restarts at once",
    (State.LEAVING, Event.RESTART): "the worker is leaving",
    (State.LEAVING, Event.RESTART_NOW): "the worker is leaving",
}
"""What an operator asks for and cannot have, with the words of the refusal."""

TABLE: Final = LifeTable({pair: to for pair, to in _table().items() if pair not in _REFUSED})

SHOWN: Final[dict[State, ShownState]] = {
    State.WAITING: "waiting",
    State.STARTING: "starting",
    State.PROBING: "starting",
    State.READY: "ready",
    State.YIELDING: "draining",
    State.HELD: "ready",
    State.DRAINING: "draining",
    State.REPLACING: "ending",
    State.ENDING: "ending",
    State.LINGERING: "ending",
    State.STOPPED: "stopped",
    State.DROWSY: "falling asleep",
    State.FALLING_ASLEEP: "falling asleep",
    State.ASLEEP: "asleep",
    State.LEAVING: "leaving",
}
"""The word for a state in the worker's status, which says beside it whether the worker is held."""

_STARTS: Final[tuple[RejectReason, str]] = ("not_ready", "the engine is starting")
_HELD: Final[tuple[RejectReason, str]] = ("draining", "the worker is held for another version")
REFUSALS: Final[dict[State, tuple[RejectReason, str]]] = {
    State.WAITING: _STARTS,
    State.STARTING: _STARTS,
    State.PROBING: _STARTS,
    State.READY: _STARTS,  # of a rank, which no gateway may ask
    State.YIELDING: _HELD,
    State.HELD: _HELD,
    State.DRAINING: ("draining", "the worker is leaving"),
    State.REPLACING: _STARTS,
    State.ENDING: _STARTS,
    State.LINGERING: _STARTS,
    # Not `draining`: the worker comes back in its next turn.
    State.DROWSY: ("not_ready", "the engine is falling asleep"),
    State.FALLING_ASLEEP: ("not_ready", "the engine is falling asleep"),
    State.ASLEEP: ("not_ready", "the engine is asleep"),
    State.STOPPED: ("not_ready", "the engine is stopped; the worker's log says why"),
    State.LEAVING: ("draining", "the worker is leaving"),
}
"""The answer to a submission that no engine takes."""


@final
class Lifecycle:
    """The state of one worker's engine. `on` alone changes it, and calls `on_change` then."""

    def __init__(
        self,
        hold: Hold | None = None,
        policy: RestartPolicy | None = None,
        *,
        begins_asleep: bool = False,
    ) -> None:
        """A worker that takes turns `begins_asleep`: its first turn starts it."""
        self.state = State.ASLEEP if begins_asleep else State.WAITING
        self.on_change: Callable[[], None] = _ignore
        self.hold = Hold(0.0) if hold is None else hold
        self.policy = RestartPolicy() if policy is None else policy

    def __repr__(self) -> str:
        return f"<Lifecycle {self.state.name}{' in a hold' * self.hold.is_on}>"

    def on(self, event: Event) -> State:
        """Take an event; return the new state. What becomes ready in a hold is held.

        Raises `ConfigError` if an operator cannot have it, `ImpossibleEventError` for what cannot
        happen.
        """
        pair = (self.state, event)
        if (why := _REFUSED.get(pair)) is not None:
            raise ConfigError(why)
        to = TABLE[pair]
        if to is State.READY and self.hold.is_on:
            to = State.HELD
        if to is not self.state:
            self.state = to
            self.on_change()
        return to

    def delay_after_death(
        self, now: float, *, is_permanent: bool, is_outside: bool, is_rank: bool
    ) -> float | None:
        """Seconds until the next start; None: no start follows by itself.

        A version on trial, which runs in a hold, has one try, even if it was ready before. A rank
        of a group starts at once: its head counts the tries.
        """
        is_on_trial = self.hold.is_on
        delay_s = self.policy.exited(
            now, is_permanent=is_permanent or is_on_trial, is_outside=is_outside
        )
        if is_rank:
            return 0.0
        return None if is_on_trial else delay_s


def diagram() -> str:
    """The table, without what changes nothing and without `LEAVE`."""
    return TABLE.diagram(State.WAITING, without=Event.LEAVE, direction="LR")


def _ignore() -> None:
    """Nobody looks."""
