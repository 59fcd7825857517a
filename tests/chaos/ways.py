"""The server that breaks (`bed.py`) before a real gateway, in each of its places.

Owns the rule: an answer is whole, moved to another, or one clear error within its bounds; nothing
hangs and no half answer passes for a whole one. `python -m tests.chaos.ways` runs all of it, or of
the ways, places and kinds that are named.
"""

import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from tests.chaos import liar, token_liar
from tests.chaos.bed import PLACES, TOKEN_PLACES, Bed, Liar, open_bed
from tests.chaos.liar import HEALTH, WORDS

HANGS_S: Final = 60.0
"""Far beyond every bound: ten times on a loaded machine."""
RIGHT: Final = "".join(WORDS)
NUM_AGAIN: Final = 2
SEEN_S: Final = 1.5
"""Until a health check has met what is new."""
GONE: Final = ("stands-still", "refuses")
"""Its process is stopped, then killed: nothing answers at its port, nothing listens there."""
APIS: Final = ("chat", "messages", "responses")


class Case(NamedTuple):
    """One request: which way the server breaks, where it stands, and how it is asked."""

    way: str
    place: str
    api: str
    streamed: bool

    @property
    def question(self) -> str:
        """The client's text, by which the server knows what to do."""
        return f"way={self.way} {self.place} {self.api} {self.streamed}"

    @property
    def what(self) -> str:
        """What breaks."""
        return next(what for what, ways in ways_at(self.place).items() if self.way in ways)


def ways_at(place: str) -> dict[str, tuple[str, ...]]:
    """The ways to break in a place, by what breaks."""
    ways = token_liar.WAYS if place in TOKEN_PLACES else liar.WAYS
    return {**{what: tuple(named) for what, named in ways.items()}, "health": HEALTH, "gone": GONE}


def all_cases() -> list[Case]:
    return [
        Case(way, *where)
        for where in itertools.product(PLACES, APIS, (False, True))
        for ways in ways_at(where[0]).values()
        for way in ways
    ]


def pairwise(seed: int = 1) -> list[Case]:
    """Cases in which every two values of different fields meet."""
    rest = all_cases()
    random.Random(seed).shuffle(rest)
    wanted = {pair for case in rest for pair in _pairs(case)}
    chosen: list[Case] = []
    while wanted:
        best = max(rest, key=lambda case: len(wanted & _pairs(case)))
        chosen.append(best)
        wanted -= _pairs(best)
    return chosen


def _pairs(case: Case) -> set[tuple[object, object]]:
    return set(itertools.combinations(enumerate(case), 2))


def run(bed: Bed, cases: list[Case]) -> dict[Case, str]:
    """The outcome of each case: `whole`, `moved`, `error`, or what is wrong with it."""
    found = _run_lanes(bed, [case for case in cases if case.what not in ("health", "gone")])
    for _ in range(NUM_AGAIN):
        found |= _run_lanes(bed, never_asked(bed, found))
    for way in HEALTH:
        bed.wait_ready()
        for one in bed.liars:
            one.order(way)
        time.sleep(SEEN_S)
        found |= _run_lanes(bed, [case for case in cases if case.way == way], heals=False)
        for one in bed.liars:
            one.order("")
    for way, act in (("stands-still", Liar.stop), ("refuses", Liar.kill)):
        for one in bed.liars:
            act(one)
        found |= _run_lanes(bed, [case for case in cases if case.way == way], heals=False)
    return found


def never_asked(bed: Bed, found: Iterable[Case]) -> list[Case]:
    """The cases in which no server that breaks was asked: a loaded machine took longer than the
    bounds for right answers, so the server rested. Of two workers the healthy one may be asked.
    """
    asked = bed.asked()
    return [
        case
        for case in found
        if case.what not in ("health", "gone")
        and case.place != "token-two"
        and case.question not in asked
    ]


def _run_lanes(bed: Bed, cases: list[Case], *, heals: bool = True) -> dict[Case, str]:
    """Two cases at a time in each place. `heals`: each is followed by a right request. So there are
    never failures of three different requests without a success between them, and no worker is
    unproven: each case meets the server that breaks.
    """
    found: dict[Case, str] = {}

    def walk(lane: list[Case]) -> None:
        for case in lane:
            found[case] = _run_one(bed.root, case)
            if heals:
                _ask(bed.root, case._replace(way="none"))

    lanes = [
        [case for case in cases if case.place == place][at::2] for place in PLACES for at in (0, 1)
    ]
    with ThreadPoolExecutor(len(lanes)) as pool:
        for done in [pool.submit(walk, lane) for lane in lanes]:
            done.result()
    return found


def _run_one(root: str, case: Case) -> str:
    try:
        reply = _ask(root, case)
    except httpx.HTTPError as error:
        return f"HANGS OR BREAKS: {type(error).__name__}"
    verdict = _judge_stream(case, reply.text) if _is_stream(reply) else _judge(case, reply)
    served_by = reply.headers.get("x-herma-served-by", "")
    return "moved" if verdict == "whole" and served_by == "cloud:good" else verdict


def _ask(root: str, case: Case) -> httpx.Response:
    said = [{"role": "user", "content": case.question}]
    paths = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}
    body: dict[str, Any] = {"model": case.place, "stream": case.streamed}
    body["input" if case.api == "responses" else "messages"] = said
    if case.api == "messages":
        body["max_tokens"] = 64
    return httpx.post(f"{root}/v1/{paths[case.api]}", json=body, timeout=HANGS_S)


def _is_stream(reply: httpx.Response) -> bool:
    return reply.headers.get("content-type", "").startswith("text/event-stream")


def _judge(case: Case, reply: httpx.Response) -> str:
    try:
        body = reply.json()
    except ValueError:
        return f"NO JSON with status {reply.status_code}"
    if reply.status_code >= 400:
        return "error" if body.get("error") else f"NO ERROR with status {reply.status_code}"
    if case.api == "responses" and body.get("status") in ("failed", "incomplete"):
        return "error"
    return "whole" if _text(case.api, body) == RIGHT else f"NOT WHOLE: {reply.text[:200]}"


def _text(api: str, body: dict[str, Any]) -> str:
    match api:
        case "chat":
            return str(body["choices"][0]["message"].get("content"))
        case "messages":
            return "".join(part.get("text", "") for part in body["content"])
        case _:
            parts = [part for item in body["output"] for part in item.get("content") or ()]
            return "".join(part.get("text", "") for part in parts)


_ENDS: Final = {"chat": "[DONE]", "messages": "message_stop", "responses": "response.completed"}


def _judge_stream(case: Case, text: str) -> str:
    """An answer's end and an error exclude each other, and one of them is there."""
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    parsed = [json.loads(one) for one in events if one != "[DONE]"]
    kinds = [str(one.get("type", "")) for one in parsed] + ["[DONE]"] * events.count("[DONE]")
    is_error = any(one.get("error") for one in parsed) or bool(
        {"error", "response.failed", "response.incomplete"} & set(kinds)
    )
    is_end = _ENDS[case.api] in kinds
    if is_error:
        return "error" if not is_end else f"AN ERROR AND AN END: {text[-300:]}"
    if not is_end:
        return f"NO END: {text[-300:]}"
    said = "".join(_delta(case.api, one) for one in parsed)
    return "whole" if said == RIGHT else f"NOT WHOLE: {said!r}"


def _delta(api: str, event: dict[str, Any]) -> str:
    match api:
        case "chat":
            choices = event.get("choices") or ()
            return "".join(one["delta"].get("content") or "" for one in choices)
        case "messages":
            return str(event.get("delta", {}).get("text", ""))
        case _:
            is_text = event.get("type") == "response.output_text.delta"
            return str(event["delta"]) if is_text else ""


def table(found: dict[Case, str]) -> Iterator[str]:
    """The outcomes, with a line for each way and a column for each place."""
    yield "| what breaks | way | " + " | ".join(PLACES) + " |"
    yield "|---|---|" + "---|" * len(PLACES)
    told: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for case, verdict in found.items():
        places = told.setdefault((case.what, case.way), {})
        places.setdefault(case.place, Counter())[verdict] += 1
    for (what, way), places in sorted(told.items()):
        cells = [
            ", ".join(f"{count} {verdict}" for verdict, count in sorted(places[place].items()))
            if place in places
            else ""
            for place in PLACES
        ]
        yield f"| {what} | {way} | " + " | ".join(cells) + " |"


def main() -> int:
    """Run all cases, or those of the ways or places that are named; 1 if one breaks the rule."""
    cases = all_cases()
    if names := set(sys.argv[1:]):
        cases = [case for case in cases if names & {case.way, case.place, case.what}]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, open_bed(Path(folder)) as bed:
        found = run(bed, cases)
        num_missed = len(never_asked(bed, found))
    print("\n".join(table(found)))
    seconds = time.monotonic() - began
    print(f"{len(found)} requests, {num_missed} of which met no broken server, {seconds:.0f} s")
    return int(any(verdict not in ("whole", "moved", "error") for verdict in found.values()))


if __name__ == "__main__":
    sys.exit(main())
