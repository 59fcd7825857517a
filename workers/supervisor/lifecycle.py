"""The life of a worker's engine: its states, and what leads from one to another.

Owns the table of states, the words in which each is shown and refused, and the verdict on a death.
Must not know processes, gateways or clocks. `diagram` prints the table for docs/architecture.md.
"""

from collections.abc import Callable
from enum import auto
from typing import Final, final

from protocol.control_messages import State as ShownState
from protocol.errors import ConfigError
from protocol.life_tables import LifeEnum, LifeTable
from protocol.messages import RejectReason
from workers.supervisor.hold import WorkerHold
from workers.supervisor.restart_policy import RestartPolicy


class EngineState(LifeEnum):
    """The state of an engine."""

    WAITING = auto()
    """No process. The next start is due after the back-off, for the group or for free memory."""
    STARTING = auto()
    """The process loads its model."""
    PROBING = auto()
    """The model is loaded. The tokens of the health probe are due."""
    READY = auto()
    """The engine serves gateways."""
    YIELDING = auto()
    """The engine finishes its sequences, and is held afterwards."""
    HELD = auto()
    """The engine could serve, and is kept from gateways while the worker's version changes."""
    DRAINING = auto()
    """The engine finishes its sequences, and is replaced afterwards."""
    REPLACING = auto()
    """The process was asked to end, because the next engine is to follow."""
    ENDING = auto()
    """The process has ended by itself. It is reaped, and its leftovers are removed."""
    LINGERING = auto()
    """The process was killed, and gateways know it, but the kernel has not ended the process
    yet.
    """
    STOPPED = auto()
    """No process, and none follows until an operator asks for it."""
    DROWSY = auto()
    """The engine finishes its sequences, and falls asleep afterwards."""
    FALLING_ASLEEP = auto()
    """The process moves its memory off the card, or ends."""
    ASLEEP = auto()
    """No process, and no memory of the card. The next turn starts one."""
    DORMANT = auto()
    """The engine sleeps without an end: its process lives, with its memory in the host's."""
    WAKING = auto()
    """The process takes its memory back, and the engine proves itself again."""
    LEAVING = auto()
    """The worker ends, and its engine with it."""


class LifeEvent(LifeEnum):
    """An event of an engine's life: what happens to it, or what its supervisor asks for."""

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
    MOVED_OUT = "its process lives without its memory"
    WAKE = "its turn begins"
    LEAVE = "the worker ends"


_UNPROVEN: Final = (EngineState.STARTING, EngineState.PROBING)
OVER: Final = (EngineState.ENDING, EngineState.LINGERING)
"""The process is dead by itself, and the verdict on its death is due."""
DRAINS: Final = (EngineState.YIELDING, EngineState.DRAINING, EngineState.DROWSY)
"""The engine finishes its sequences and takes no others."""
SERVING: Final = frozenset(
    (
        EngineState.READY,
        EngineState.YIELDING,
        EngineState.HELD,
        EngineState.DRAINING,
        EngineState.DROWSY,
    )
)
"""The engine has generated the health probe's tokens, and lives."""


def _of_sleep() -> dict[tuple[EngineState, LifeEvent], EngineState]:
    s, e = EngineState, LifeEvent
    return {
        (s.READY, e.SLEEP): s.DROWSY,
        (s.WAITING, e.SLEEP): s.ASLEEP,  # between two tries to start
        (s.DROWSY, e.RESTED): s.FALLING_ASLEEP,
        (s.DROWSY, e.RESTART): s.DRAINING,
        (s.FALLING_ASLEEP, e.SLEPT): s.ASLEEP,
        (s.ASLEEP, e.START): s.STARTING,
        (s.FALLING_ASLEEP, e.MOVED_OUT): s.DORMANT,
        (s.DORMANT, e.WAKE): s.WAKING,
        # Nothing is lost with the process; its memory is free once it is reaped.
        (s.DORMANT, e.EXITED): s.FALLING_ASLEEP,
        (s.DORMANT, e.LINGERS): s.FALLING_ASLEEP,
        (s.DORMANT, e.RESTART): s.FALLING_ASLEEP,
        (s.DORMANT, e.RESTART_NOW): s.FALLING_ASLEEP,
        (s.WAKING, e.PROVEN): s.READY,
        (s.WAKING, e.MOVED_OUT): s.DORMANT,  # other processes have the memory
        (s.WAKING, e.EXITED): s.ENDING,
        (s.WAKING, e.LINGERS): s.LINGERING,
        (s.WAKING, e.RESTART): s.REPLACING,
        (s.WAKING, e.RESTART_NOW): s.REPLACING,
    }


def _table() -> dict[tuple[EngineState, LifeEvent], EngineState]:
    s, e = EngineState, LifeEvent
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
    for state in _UNPROVEN:  # the engine has nothing to finish
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
        # An end that was asked for, or that changes nothing, because a sleeping engine has nothing
        # to lose.
        s.FALLING_ASLEEP: (e.SLEEP, e.EXITED, e.LINGERS),
        # A hold that has begun before, of a worker that waits for its turn, may end there.
        s.ASLEEP: (e.SLEEP, e.UNHOLD, e.RESTART, e.RESTART_NOW),
        s.DORMANT: (e.SLEEP,),
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
    return table | moves | {(state, e.LEAVE): s.LEAVING for state in EngineState}


_ASLEEP_WORDS: Final = "it is asleep or on its way; `herma worker wake` it first"
_REFUSED: Final = {
    (EngineState.YIELDING, LifeEvent.HOLD): "the worker is draining",
    (EngineState.DRAINING, LifeEvent.HOLD): "the worker is draining",
    (EngineState.HELD, LifeEvent.HOLD): "the worker is held already",
    (EngineState.LEAVING, LifeEvent.HOLD): "the worker is leaving",
    (EngineState.DROWSY, LifeEvent.HOLD): _ASLEEP_WORDS,
    (EngineState.FALLING_ASLEEP, LifeEvent.HOLD): _ASLEEP_WORDS,
    (EngineState.ASLEEP, LifeEvent.HOLD): _ASLEEP_WORDS,
    (EngineState.DORMANT, LifeEvent.HOLD): _ASLEEP_WORDS,
    (EngineState.WAKING, LifeEvent.HOLD): _ASLEEP_WORDS,
    (
        EngineState.FALLING_ASLEEP,
        LifeEvent.RESTART,
    ): "it is falling asleep; its next wake can be a restart",
    (
        EngineState.FALLING_ASLEEP,
        LifeEvent.RESTART_NOW,
    ): "it is falling asleep; ask again in a moment",
    (
        EngineState.YIELDING,
        LifeEvent.RESTART,
    ): "it is draining and restarts then; --force restarts at once",
    (
        EngineState.DRAINING,
        LifeEvent.RESTART,
    ): "it is draining and restarts then; --force restarts at once",
    (EngineState.LEAVING, LifeEvent.RESTART): "the worker is leaving",
    (EngineState.LEAVING, LifeEvent.RESTART_NOW): "the worker is leaving",
}
"""The requests of an operator that are refused, with the words of the refusal."""

TABLE: Final = LifeTable({pair: to for pair, to in _table().items() if pair not in _REFUSED})

SHOWN: Final[dict[EngineState, ShownState]] = {
    EngineState.WAITING: "waiting",
    EngineState.STARTING: "starting",
    EngineState.PROBING: "starting",
    EngineState.READY: "ready",
    EngineState.YIELDING: "draining",
    EngineState.HELD: "ready",
    EngineState.DRAINING: "draining",
    EngineState.REPLACING: "ending",
    EngineState.ENDING: "ending",
    EngineState.LINGERING: "ending",
    EngineState.STOPPED: "stopped",
    EngineState.DROWSY: "falling asleep",
    EngineState.FALLING_ASLEEP: "falling asleep",
    EngineState.ASLEEP: "asleep",
    EngineState.DORMANT: "asleep",
    EngineState.WAKING: "waking",
    EngineState.LEAVING: "leaving",
}
"""The word for a state in the worker's status, which says beside it whether the worker is held."""

_STARTS: Final[tuple[RejectReason, str]] = ("not_ready", "the engine is starting")
_HELD: Final[tuple[RejectReason, str]] = ("draining", "the worker is held for another version")
REFUSALS: Final[dict[EngineState, tuple[RejectReason, str]]] = {
    EngineState.WAITING: _STARTS,
    EngineState.STARTING: _STARTS,
    EngineState.PROBING: _STARTS,
    EngineState.READY: _STARTS,  # a rank without an API takes no requests
    EngineState.YIELDING: _HELD,
    EngineState.HELD: _HELD,
    EngineState.DRAINING: ("draining", "the worker is leaving"),
    EngineState.REPLACING: _STARTS,
    EngineState.ENDING: _STARTS,
    EngineState.LINGERING: _STARTS,
    # Not `draining`: the worker comes back in its next turn.
    EngineState.DROWSY: ("not_ready", "the engine is falling asleep"),
    EngineState.FALLING_ASLEEP: ("not_ready", "the engine is falling asleep"),
    EngineState.ASLEEP: ("not_ready", "the engine is asleep"),
    EngineState.DORMANT: ("not_ready", "the engine is asleep"),
    EngineState.WAKING: ("not_ready", "the engine is waking"),
    EngineState.STOPPED: ("not_ready", "the engine is stopped; the worker's log says why"),
    EngineState.LEAVING: ("draining", "the worker is leaving"),
}
"""The answer to a submission that no engine takes."""


@final
class Lifecycle:
    """The state of one worker's engine. `on` alone changes it, and calls `on_change` then."""

    def __init__(
        self,
        hold: WorkerHold | None = None,
        policy: RestartPolicy | None = None,
        *,
        begins_asleep: bool = False,
    ) -> None:
        """A worker that takes turns `begins_asleep`: its first turn starts it."""
        self.state = EngineState.ASLEEP if begins_asleep else EngineState.WAITING
        self.on_change: Callable[[], None] = _ignore
        self.hold = WorkerHold(0.0) if hold is None else hold
        self.policy = RestartPolicy() if policy is None else policy

    def __repr__(self) -> str:
        return f"<Lifecycle {self.state.name}{' in a hold' * self.hold.is_on}>"

    def on(self, event: LifeEvent) -> EngineState:
        """Take an event; return the new state. An engine that becomes ready in a hold is held.

        Raises `ConfigError` if an operator cannot have it, `ImpossibleEventError` for what cannot
        happen.
        """
        pair = (self.state, event)
        if (why := _REFUSED.get(pair)) is not None:
            raise ConfigError(why)
        to = TABLE[pair]
        if to is EngineState.READY and self.hold.is_on:
            to = EngineState.HELD
        if to is not self.state:
            self.state = to
            self.on_change()
        return to

    def delay_after_death(
        self,
        now: float,
        *,
        is_permanent: bool,
        is_outside: bool,
        is_rank: bool,
        is_attached: bool = False,
    ) -> float | None:
        """Seconds until the next start; None: no start follows by itself.

        A version on trial, which runs in a hold, has one try, even if it was ready before. A rank
        of a group starts at once: its head counts the tries.
        """
        is_on_trial = self.hold.is_on
        delay_s = self.policy.exited(
            now,
            is_permanent=is_permanent or is_on_trial,
            is_outside=is_outside,
            is_attached=is_attached,
        )
        if is_rank:
            return 0.0
        return None if is_on_trial else delay_s


def diagram() -> str:
    """The table, without what changes nothing and without `LEAVE`."""
    return TABLE.diagram(EngineState.WAITING, without=LifeEvent.LEAVE, direction="LR")


def _ignore() -> None:
    """Do nothing: the observer before one is set."""
