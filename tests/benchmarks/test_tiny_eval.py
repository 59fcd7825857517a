"""The evaluation over HTTP, against a server that knows the answers."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tiny_eval.__main__ import SEED, main
from benchmarks.tiny_eval.client import MAX_TOKENS, as_sent
from benchmarks.tiny_eval.outside import outside_prompts
from benchmarks.tiny_eval.report import bars, score
from training.data import SKILLS, ExampleVerdict, examples, skill_cases, without_reasoning

NUM_CASES = 3


def _key(messages: list[dict[str, Any]], tools: object) -> str:
    return json.dumps([messages, tools])


def _right_answers(num_cases: int) -> dict[str, dict[str, Any]]:
    """What a perfect model would say to each request."""
    known = {}
    for skill in SKILLS:
        for case in skill_cases(skill, SEED, num_cases):
            prompt = as_sent([*case.messages])
            answer = prompt.pop()
            known[_key(prompt, list(case.tools) or None)] = answer
    return known


class _Handler(BaseHTTPRequestHandler):
    """Chat completions, whole or streamed in two parts."""

    protocol_version = "HTTP/1.1"
    known: dict[str, dict[str, Any]]
    finish_reason = "stop"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert body["temperature"] == 0
        assert body["max_tokens"] == MAX_TOKENS
        nothing = {"content": "Hm."}
        message = self.known.get(_key(body["messages"], body.get("tools")), nothing)
        data = self._events(message) if body["stream"] else self._whole(message)
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _whole(self, message: dict[str, Any]) -> bytes:
        choice = {"message": message, "finish_reason": self.finish_reason}
        return json.dumps({"choices": [choice]}).encode()

    def _events(self, message: dict[str, Any]) -> bytes:
        text = message["content"]
        deltas: list[dict[str, Any]] = [{"content": text[:5]}, {"content": text[5:]}]
        for index, call in enumerate(message.get("tool_calls", [])):
            function = call["function"]
            named = {"name": function["name"], "arguments": function["arguments"][:3]}
            rest = {"arguments": function["arguments"][3:]}
            deltas += [{"tool_calls": [{"index": index, "function": f}]} for f in (named, rest)]
        choices = [{"delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"delta": {}, "finish_reason": self.finish_reason})
        lines = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices]
        return "".join([*lines, "data: [DONE]\n\n"]).encode()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    """Takes all connections that the evaluation opens at once."""

    request_queue_size = 64


@contextmanager
def _serving(known: dict[str, dict[str, Any]], finish_reason: str = "stop") -> Iterator[str]:
    handler = type("Handler", (_Handler,), {"known": known, "finish_reason": finish_reason})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("stream", [False, True])
def test_right_answers_pass(
    stream: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that answers everything right passes every bar, whole and streamed."""
    result = tmp_path / "result.json"
    arguments = ["--cases", str(NUM_CASES), "--json", str(result), *["--stream"] * stream]
    with _serving(_right_answers(NUM_CASES)) as url:
        code = main(["--url", url, *arguments])
    assert code == 0, capsys.readouterr().out
    report = json.loads(result.read_text())
    assert [one["skill"] for one in report["skills"]] == list(SKILLS)
    assert all(one["right"] == 1 for one in report["skills"])


@pytest.mark.parametrize("is_same", [True, False])
def test_both_forms_are_held_against_each_other(
    is_same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that differ in one letter when they are streamed fail, and only they."""
    if not is_same:
        whole = _Handler._events
        events = lambda self, message: whole(self, message).replace(b"a", b"b", 1)  # noqa: E731
        monkeypatch.setattr(_Handler, "_events", events)
    result = tmp_path / "result.json"
    with _serving(_right_answers(NUM_CASES)) as url:
        words = ["--both", "--skill", "tools", "--cases", str(NUM_CASES), "--json", str(result)]
        code = main(["--url", url, *words])
    (skill,) = json.loads(result.read_text())["both_forms"]
    assert code == (0 if is_same else 1)
    assert skill["num_right_whole"] == NUM_CASES
    assert (skill["num_same"] == NUM_CASES) == is_same


def test_wrong_answers_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that says nothing of use fails, and the failures can be shown."""
    with _serving({}) as url:
        code = main(["--url", url, "--skill", "tools", "--cases", "4", "--show", "2"])
    assert code == 1
    printed = capsys.readouterr().out
    assert "| tools | 4 | 0.0% |" in printed
    assert printed.count("wanted:") == 2


@pytest.mark.parametrize(
    ("finish_reason", "code", "num_ended"), [("stop", 0, 20), ("length", 1, 0)]
)
def test_outside_prompts_must_end(
    finish_reason: str, code: int, num_ended: int, tmp_path: Path
) -> None:
    """Answers that were cut off are counted as endless, kind by kind."""
    result = tmp_path / "result.json"
    with _serving({}, finish_reason) as url:
        assert main(["--url", url, "--outside", "--json", str(result)]) == code
    kinds = {one["kind"]: one for one in json.loads(result.read_text())["outside"]}
    agents = kinds["agent, 49 KB"]
    assert (agents["num_cases"], agents["num_ended"]) == (20, num_ended)
    assert len(agents["endless"]) == 20 - num_ended


def test_another_seed_asks_other_cases(tmp_path: Path) -> None:
    """What is right for one seed is not for the next; the report names the seed."""
    result = tmp_path / "result.json"
    arguments = ["--skill", "arithmetic", "--cases", str(NUM_CASES), "--json", str(result)]
    with _serving(_right_answers(NUM_CASES)) as url:
        assert main(["--url", url, "--seed", str(SEED + 1), *arguments]) == 1
    assert json.loads(result.read_text())["seed"] == SEED + 1


@pytest.mark.parametrize("num_trained", [4_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_there_are_enough_outside_prompts_and_none_was_trained(num_trained: int) -> None:
    """There are at least 500 outside prompts, none of them trained, and some of them agents'
    requests of more than 46 KB with 17 tools.
    """
    prompts = outside_prompts()
    assert prompts == outside_prompts()
    requests = [prompt.request for prompt in prompts]
    assert len(requests) >= 500
    large = [one for one in requests if len(json.dumps(one)) > 46 * 1024]
    assert len(large) >= 10
    assert all(len(one["tools"]) == 17 for one in large)
    asked = {one["messages"][-1]["content"] for one in requests}
    stream = examples(4, "train")
    trained = {next(stream).messages[-2]["content"] for _ in range(num_trained)}
    common = asked & trained
    assert all(len(text) <= 3 for text in common), common


def test_every_bar_can_fail() -> None:
    """The mean, the worst skill, the form of calls and the choice of tools are held apart."""
    right, wrong = ExampleVerdict(True, None, None), ExampleVerdict(False, None, None)
    good = score("a", [right] * 100, [True] * 100)
    assert all(bar.holds for bar in bars([good]))
    weak = score("b", [right] * 89 + [wrong] * 11, [True] * 100)
    assert [bar.holds for bar in bars([good, weak])] == [False, False, True, True]
    broken = score(
        "c", [ExampleVerdict(True, True, True)] * 98 + [ExampleVerdict(True, False, True)] * 2, []
    )
    assert [bar.holds for bar in bars([broken])] == [True, True, False, True]
    astray = score(
        "d", [ExampleVerdict(True, True, True)] * 96 + [ExampleVerdict(True, True, False)] * 4, []
    )
    assert [bar.holds for bar in bars([astray])] == [True, True, True, False]


def test_a_harder_skill_has_a_bar_of_its_own() -> None:
    """80 of 100 right, whatever tools it takes; the others keep theirs."""
    right, wrong = ExampleVerdict(True, True, True), ExampleVerdict(False, True, False)
    good = score("a", [right] * 900, [True] * 900)
    fair = score("natural", [right] * 80 + [wrong] * 20, [True] * 100)
    poor = score("natural", [right] * 79 + [wrong] * 21, [True] * 100)
    assert [bar.holds for bar in bars([good, fair])][1:] == [True, True, True]
    assert [bar.holds for bar in bars([good, poor])][1:] == [False, True, True]


def test_history_is_sent_as_clients_send_it() -> None:
    """Calls get ids that their results name, and arguments become JSON text."""
    case = skill_cases("tool_result", 1, 1)[0]
    sent = as_sent(case.messages)
    call = next(message for message in sent if message.get("tool_calls"))
    result = next(message for message in sent if message["role"] == "tool")
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert isinstance(call["tool_calls"][0]["function"]["arguments"], str)
    assert without_reasoning(call["content"]) == ""
