"""Fleet events as one line of text for people.

Owns the text and the level of each kind. Must not know where it is shown. A kind without a text of
its own is shown by its fields.
"""

from typing import Any, Final, Literal

import msgspec

from gateway.telemetry.fleet_events import (
    AdminAct,
    AnswerCut,
    BreakerClosed,
    BreakerOpen,
    CallsUnknown,
    ConfigReloaded,
    ConversationRefused,
    EngineFault,
    FallbackOff,
    FallbackOn,
    FleetEvent,
    HealthProbeFailed,
    IndexGap,
    LimitReached,
    LoopFound,
    PoisonedRequest,
    ProcessReplaced,
    ProviderFailed,
    RequestDetached,
    Rerouted,
    Resumed,
    RetryRefused,
    SleepTrouble,
    SpeedBack,
    SpeedLost,
    SpendingThreshold,
    StoreStuck,
    StoreWell,
    TakenOver,
    TurnsThrash,
    WorkerAsleep,
    WorkerAwake,
    WorkerBack,
    WorkerLost,
    WorkerProven,
    WorkerReady,
    WorkerStarting,
    WorkerUnproven,
    WorkerWaking,
    kind_of,
)

Level = Literal["good", "info", "warning", "critical"]

_WORDS: Final[dict[type[msgspec.Struct], tuple[Level, str]]] = {
    WorkerStarting: ("info", "{worker} is starting (epoch {epoch})"),
    WorkerReady: ("good", "{worker} is ready with {models} on {device}"),
    CallsUnknown: (
        "warning",
        "calls of {model} are read as {taken}: its template shows no known format",
    ),
    WorkerBack: ("good", "{worker} is back with {models} on {device}"),
    WorkerUnproven: ("critical", "{worker} gets no requests until it gives tokens: {reason}"),
    WorkerProven: ("good", "{worker} gives tokens again"),
    WorkerAsleep: ("info", "{worker} is asleep; a request for {models} wakes it"),
    WorkerWaking: ("info", "{worker} wakes"),
    WorkerAwake: ("info", "{worker} is awake with {models} after {after_s} s"),
    SleepTrouble: ("warning", "{worker}: {reason}"),
    TurnsThrash: (
        "warning",
        "{worker} has woken {wakes} times in ten minutes; changes took {percent} % of the time",
    ),
    WorkerLost: ("warning", "{worker} is gone: {reason}"),
    SpeedLost: (
        "warning",
        "{worker} is slower than at its last good start, with {num_changes} changes: {figures}",
    ),
    SpeedBack: ("good", "{worker} is as fast as at its last good start again"),
    IndexGap: ("info", "{worker} sends its cached blocks anew"),
    FallbackOn: ("critical", "{model} is answered by {providers}: {reason}"),
    FallbackOff: ("good", "{model} is answered by its workers again"),
    HealthProbeFailed: ("warning", "{worker} gave no tokens for {model}: {reason}"),
    Rerouted: ("info", "request {request} moves away from {worker}: {reason}"),
    Resumed: (
        "info",
        "request {request} continues elsewhere after {output_tokens} tokens; {worker}: {reason}",
    ),
    RetryRefused: ("warning", "{what}: the budget for retries is spent"),
    PoisonedRequest: ("warning", "request {request} was at {deaths} deaths of engines; refused"),
    BreakerClosed: ("good", "{scope} {name} answers again"),
    ProviderFailed: ("warning", "{provider} gave no answer for {model}: {reason}"),
    AnswerCut: ("warning", "{provider} broke an answer of {model} off: {reason}"),
    LimitReached: ("critical", "the {period} limit of {scope} {name} refuses until {resets_at}"),
    StoreStuck: ("critical", "the store `{store}` cannot be used: {reason}"),
    StoreWell: ("good", "the store `{store}` is used again"),
    LoopFound: ("warning", "conversation {name} repeats {tools} without news, {repeats} times"),
    ConversationRefused: ("warning", "the {what} of conversation {name} are used up"),
    SpendingThreshold: ("warning", "{percent} % of the {period} limit of {scope} {name} are spent"),
    ProcessReplaced: ("warning", "this process replaces one that ended: {why}"),
    AdminAct: ("info", "{act} by {who}: {result}"),
    RequestDetached: ("info", "a client of {model} left before the first token"),
    TakenOver: ("info", "a client of {model} came back after {after_s:g} s"),
}


def words_of(event: FleetEvent) -> tuple[Level, str]:
    """The level of the event, and its text."""
    match event:
        case EngineFault():
            return _engine_fault(event)
        case BreakerOpen(scope, name, open_s, reason, cooling):
            what = "is left alone" if cooling else "is asked last"
            return "warning", f"{scope} {name} {what} for {open_s:.0f} s: {reason}"
        case ConfigReloaded(taken, kept):
            return "info", _reloaded(taken, kept)
        case _:
            fields = {key: _shown(value) for key, value in msgspec.structs.asdict(event).items()}
            if type(event) not in _WORDS:
                return "info", ", ".join([kind_of(event), *(f"{k} {v}" for k, v in fields.items())])
            level, words = _WORDS[type(event)]
            return level, words.format_map(fields)


def _reloaded(taken: tuple[str, ...], kept: tuple[str, ...]) -> str:
    """Keys that only a restart takes come first: the operator has to do something about them."""
    if not taken and not kept:
        return "the configuration was read again: nothing in it is new to this gateway"
    waits = f"a restart takes: {', '.join(kept)}; " * bool(kept)
    return f"the configuration was reloaded: {waits}taken: {', '.join(taken) or 'nothing'}"


def _engine_fault(event: EngineFault) -> tuple[Level, str]:
    fault = event.kind.replace("_", " ")
    code = "" if event.exit_code is None else f", exit code {event.exit_code}"
    if event.cause.startswith("exit code"):
        code = ""
    why = f"{fault}{code}" if not event.cause else f"{fault}{code}: {event.cause}"
    if event.is_final:
        return "critical", f"{event.worker} has given up: {why}"
    return "warning", f"{event.worker}: {why}; it starts again"


def _shown(value: Any) -> Any:  # noqa: ANN401 - a field of any event
    return (", ".join(map(str, value)) or "nothing") if isinstance(value, tuple) else value
