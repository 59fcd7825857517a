"""The server that breaks (`liar.py`) before a real gateway, in each of its places.

Owns the rule: an answer is whole, moved to another, or one clear error within its bounds; nothing
hangs and no half answer passes for a whole one. `python -m tests.chaos.ways` runs all of it.
"""

import itertools
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from tests.chaos.liar import BY_NAME, WORDS
from tests.fakes.herma_process import herma_up
from tests.fakes.ports import free_ports

HANGS_S: Final = 60.0
"""Far beyond every bound: ten times on a loaded machine."""
RIGHT: Final = "".join(WORDS)
PLACES: Final = ("provider-alone", "provider-pair", "text-alone", "text-pair")
APIS: Final = ("chat", "messages", "responses")

_CONFIG: Final = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"
first_token_s = 0.6
stall_s = 0.6
resume_wait_s = 5

[providers.liar]
base_url = "http://127.0.0.1:{liar}/v1"
connect_s = 1
first_token_s = 0.6
read_s = 0.6
answer_s = 1

[providers.good]
base_url = "http://127.0.0.1:{good}/v1"

[[models]]
name = "provider-alone"
fallback = [{{ provider = "liar", model = "there" }}]

[[models]]
name = "provider-pair"
fallback = [{{ provider = "liar", model = "there" }}, {{ provider = "good", model = "there" }}]

[[models]]
name = "text-alone"

[[models]]
name = "text-pair"
fallback = [{{ provider = "good", model = "there" }}]
"""
_WORKER: Final = """
[[workers]]
name = "{model}"
model = "there"
serves = "{model}"
engine = "openai"
url = "http://127.0.0.1:{liar}"
probe_context = 16
"""


class Case(NamedTuple):
    """One request: which way the server breaks, where it stands, and how it is asked."""

    way: str
    place: str
    api: str
    streamed: bool


def all_cases() -> list[Case]:
    return [Case(*one) for one in itertools.product(BY_NAME, PLACES, APIS, (False, True))]


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


@contextmanager
def open_bed(folder: Path) -> Iterator[str]:
    """The root of a gateway with the liar in all places, and a good server beside it."""
    liar = free_ports(2)
    good = liar + 1
    config = folder / "herma.toml"
    text = _CONFIG.format(folder=folder, liar=liar, good=good)
    for model in ("text-alone", "text-pair"):
        text += _WORKER.format(model=model, liar=liar)
    config.write_text(text)
    argv = [sys.executable, "-m", "tests.chaos.liar"]
    servers = [subprocess.Popen([*argv, str(liar)])]
    servers.append(subprocess.Popen([*argv, str(good), "good"]))
    try:
        with herma_up(config) as herma:
            herma.wait_models_ready({"text-alone": 1, "text-pair": 1})
            yield herma.base_url.removesuffix("/v1")
    finally:
        for server in servers:
            server.kill()
            server.wait()


def run(root: str, cases: list[Case]) -> dict[Case, str]:
    """What came of each case: `whole`, `moved`, `error`, or what is wrong with it."""
    with ThreadPoolExecutor(24) as pool:
        return dict(zip(cases, pool.map(lambda case: _run_one(root, case), cases), strict=True))


def _run_one(root: str, case: Case) -> str:
    said = [{"role": "user", "content": f"way={case.way} {case.api} {case.streamed}"}]

    paths = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}
    body: dict[str, Any] = {"model": case.place, "stream": case.streamed}
    body["input" if case.api == "responses" else "messages"] = said
    if case.api == "messages":
        body["max_tokens"] = 64
    try:
        reply = httpx.post(f"{root}/v1/{paths[case.api]}", json=body, timeout=HANGS_S)
    except httpx.HTTPError as error:
        return f"HANGS OR BREAKS: {type(error).__name__}"
    verdict = _judge_stream(case, reply.text) if _is_stream(reply) else _judge(case, reply)
    served_by = reply.headers.get("x-herma-served-by", "")
    return "moved" if verdict == "whole" and served_by == "cloud:good" else verdict


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


def main() -> int:
    """Run all cases, print what came of them; 1 if one breaks the rule."""
    with tempfile.TemporaryDirectory() as folder, open_bed(Path(folder)) as root:
        found = run(root, all_cases())
    for way in BY_NAME:
        for place in PLACES:
            told = Counter(v for case, v in found.items() if (case.way, case.place) == (way, place))
            print(f"{way:24} {place:16}", dict(told))
    return int(any(verdict not in ("whole", "moved", "error") for verdict in found.values()))


if __name__ == "__main__":
    sys.exit(main())
