"""Alerts: the events that operators are alerted of, in one sentence each.

Owns which events are alerts, their level and their text. Must not know receivers, or when alerts
are sent.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import msgspec

from config import AlertKind
from gateway.telemetry import (
    BreakerOpen,
    ConversationRefused,
    EngineFault,
    FallbackOff,
    FallbackOn,
    FleetEvent,
    LimitReached,
    LoopFound,
    PoisonedRequest,
    PublishedEvent,
    SleepTrouble,
    SpeedBack,
    SpeedLost,
    SpendingThreshold,
    StoreName,
    StoreStuck,
    StoreWell,
    TurnsThrash,
    WorkerBack,
    WorkerLost,
    WorkerProven,
    WorkerUnproven,
)

Level = Literal["good", "warning", "critical"]
"""Only `critical` alerts are sent in quiet hours."""


class Alert(NamedTuple):
    """`id` is the same in every attempt, so that a receiver can drop duplicates. `event` is the
    event as published, one JSON object; empty for a digest of several alerts.
    """

    id: str
    kind: AlertKind
    level: Level
    title: str
    text: str
    event: bytes


_decode: Final[Any] = msgspec.json.Decoder(FleetEvent).decode


def alert_of(published: PublishedEvent, run: str) -> Alert | None:
    """The alert for an event; None if operators are not alerted of the event. The id of the alert
    begins with `run`, which identifies this run of the gateway.
    """
    event: FleetEvent = _decode(published.json)
    words = _words(event)
    if words is None:
        return None
    kind, level, title, text = words
    return Alert(f"{run}-{published.number}", kind, level, title, text, published.json)


def _words(  # noqa: C901, PLR0911, PLR0912
    event: FleetEvent,
) -> tuple[AlertKind, Level, str, str] | None:
    match event:
        case FallbackOn(model, providers, reason):
            names = ", ".join(providers)
            return "fallback", "critical", f"{model} runs in the cloud", f"{names}: {reason}"
        case FallbackOff(model, _):
            text = "Workers answer again; nothing goes to providers."
            return "fallback", "good", f"{model} runs on its workers again", text
        case SpendingThreshold(scope, name, period, percent):
            text = f"{percent} % of this {period}'s limit is spent."
            return "spending", "warning", f"{scope} {name}: {percent} % spent", text
        case LimitReached(scope, name, period, resets_at):
            text = f"This {period}'s limit refuses cloud requests until {resets_at}."
            return "spending", "critical", f"{scope} {name}: limit reached", text
        case SpeedLost(worker, figures, num_changes):
            text = f"{'; '.join(figures)}. `herma diff {worker}` on its host: {num_changes} changes"
            return "speed loss", "warning", f"worker {worker} is slower", text
        case SpeedBack(worker):
            text = "As fast as at its last good start."
            return "speed loss", "good", f"worker {worker} is fast again", text
        case WorkerLost(worker, reason):
            return "worker", "warning", f"worker {worker} lost", reason
        case WorkerBack(worker, _, models, _):
            return "worker", "good", f"worker {worker} is back", "It serves " + ", ".join(models)
        case WorkerUnproven(worker, reason):
            text = f"It gets no requests until its engine gives tokens: {reason}."
            return "worker", "critical", f"worker {worker} answers no requests", text
        case WorkerProven(worker):
            return "worker", "good", f"worker {worker} answers again", "Its engine gives tokens."
        case SleepTrouble(worker, reason):
            return "turns", "warning", f"worker {worker} cannot take its turn", reason
        case TurnsThrash(worker, wakes, percent):
            text = (
                f"It has woken {wakes} times in ten minutes, and changes took {percent} % of the "
                "time: give one of the models another device, or less memory to each"
            )
            return "turns", "warning", f"worker {worker} changes places too often", text
        case EngineFault(worker, _, kind, exit_code, is_final):
            code = "" if exit_code is None else f", exit code {exit_code}"
            return _died(worker, f"{kind}{code}.", is_final=is_final)
        case BreakerOpen("provider", name, open_s, reason, _):
            text = f"{reason}; asked last for {open_s:.0f} s."
            return "provider", "warning", f"provider {name} fails", text
        case PoisonedRequest(request, model, _, deaths):
            text = f"Request {request} was there at {deaths} deaths of engines; it is refused now."
            return "request", "warning", f"a request ends engines of {model}", text
        case LoopFound(name, _, model, tools, repeats):
            text = f"{', '.join(tools)} on {model}, {repeats} times without anything new."
            return "conversation", "warning", f"conversation {name} is in a loop", text
        case ConversationRefused(name, key, what):
            text = f"Its {what} are used up (key {key or '-'}); its requests are refused."
            return "conversation", "warning", f"conversation {name} has reached its limit", text
        case StoreStuck(store, reason):
            return "store", "critical", f"the store `{store}` cannot be used", _stuck(store, reason)
        case StoreWell(store):
            return "store", "good", f"the store `{store}` is used again", _used_again(store)
        case _:
            return None


def _died(worker: str, how: str, *, is_final: bool) -> tuple[AlertKind, Level, str, str]:
    """The alert for an engine that died. Its text says whether the supervisor starts the engine
    again.
    """
    if not is_final:
        return "worker", "warning", f"the engine of {worker} died", f"{how} It is started again."
    text = (
        f"{how} `herma worker status {worker}` on its host says why, `herma worker restart "
        f"{worker}` starts it again."
    )
    return "crash loop", "critical", f"worker {worker} has given up", text


def _stuck(store: StoreName, reason: str) -> str:
    also = " Nothing that costs is sent meanwhile." if store == "ledger" else ""
    return f"{reason[:1].upper()}{reason[1:]}.{also}"


def _used_again(store: StoreName) -> str:
    if store == "ledger":
        return "What has waited for it is written."
    return "Responses are stored; those of the time between may be lost."
