"""`herma bench http` against real servers on loopback."""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from benchmarks.gateway.processes import LinkKind, MeasuredFleet, MeasuredGateway, running
from benchmarks.http.command import plan_of
from benchmarks.http.workload import Agents, Cold, Streams
from herma.cli import command_parser, main
from protocol.errors import ConfigError
from tests.fakes.openai_server import TEMPLATE_TOKENS, FakeOpenAI, open_fake_openai

OUTPUT = 12
NUM_PROBES = 2


@pytest.fixture(scope="module", name="gateway")
def _gateway() -> Iterator[MeasuredGateway]:
    with running(MeasuredFleet(step_ms=2.0, max_seqs=16), LinkKind()) as gateway:
        yield gateway


def arguments(*words: str) -> argparse.Namespace:
    return command_parser().parse_args(["bench", "http", *words])


async def run_bench(report: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the result file."""
    fixed = ("--output", str(OUTPUT), "--seed", "5", "--json", str(report))
    status = await trio.to_thread.run_sync(main, ["bench", "http", *words, *fixed])
    return status, json.loads(await trio.Path(report).read_text())


def rows(report: dict[str, Any], server: str) -> dict[str, dict[str, Any]]:
    """The figures of a server by row."""
    return {row["part"] or row["cell"]: row["servers"][server] for row in report["rows"]}


async def test_two_servers_in_turns(
    gateway: MeasuredGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our gateway, and a server that sends three tokens per event: every token is counted, prompts
    have their lengths by each server's own count, and each runs first in half of the turns.
    """
    async with open_fake_openai(FakeOpenAI(words_per_event=3)) as fake:
        status, report = await run_bench(
            tmp_path / "report.json",
            *f"--url http://127.0.0.1:{gateway.port}/v1 --name ours --model m".split(),
            *f"--url {fake.url} --name fake --model x --rounds 2 --cells 1,4".split(),
            "--input=200",
            "--patience=60",
            "--agents=3x2",
            "--agent-tokens=300,800",
            "--cold=2x400",
        )
    out, err = capsys.readouterr()
    assert status == 0, err
    ours, theirs = rows(report, "ours"), rows(report, "fake")
    names = ["c=1", "c=4", "agents 3x2", "first turns", "later turns", "cold 2x400"]
    assert list(ours) == list(theirs) == names
    for server in (ours, theirs):
        requests = [server[name]["num_requests"] for name in names]
        assert requests == [16, 16, 12, 6, 6, 4]
        assert all(one["tokens"] == one["num_requests"] * OUTPUT for one in server.values())
        assert all(one["errors"] == {} and one["num_early"] == 0 for one in server.values())
        assert server["c=4"]["prompt_tokens"] == pytest.approx(200, rel=0.1)
        assert server["later turns"]["prompt_tokens"] == pytest.approx(800, rel=0.1)
        assert all(server[name]["client_us_per_token"] > 0 for name in ("c=1", "c=4"))
        assert server["first turns"]["client_us_per_token"] is None
    assert ours["c=4"]["tokens_per_event"] == pytest.approx(1.0, abs=0.1)
    assert theirs["c=4"]["tokens_per_event"] == 3.0
    assert ours["c=1"]["gap_ms_p50"] > 0.5  # steps of 2 ms, in reads of their own
    assert ours["later turns"]["cached_share"] > ours["first turns"]["cached_share"]
    assert theirs["c=1"]["cached_share"] is None
    assert [turn["first"] for turn in report["ran_first"]] == [
        "ours", "fake", "ours", "fake",
        "fake", "ours", "fake", "ours",
    ]  # fmt: skip
    assert len(out.strip().split("\n\n")[0].splitlines()) == 2 + 2 * len(names)
    assert "fake: 3.00 to 3.00 tokens per event" in out
    assert sum("tok/s, first token" in line for line in err.splitlines()) == 2 * 2 * 4
    assert all(chat["ignore_eos"] and chat["model"] == "x" for chat in fake.chats)


async def test_every_prompt_is_sent_once() -> None:
    """No round, cell or server has a prompt of another; not even with the same seed in one run."""
    async with open_fake_openai(FakeOpenAI()) as one, open_fake_openai(FakeOpenAI()) as other:
        words = ["bench", "http", "--url", one.url, "--url", other.url, "--rounds", "2"]
        words += ["--cells=2,4", "--agents=-", "--cold=-", "--input=60", "--output=2"]
        assert await trio.to_thread.run_sync(main, words) == 0
    measured = [
        chat["messages"][0]["content"] for fake in (one, other) for chat in fake.chats[NUM_PROBES:]
    ]
    assert len(measured) == 2 * (2 + 4 + 2 * (8 + 8))
    assert len({" ".join(text.split()[:12]) for text in measured}) == len(measured)
    assert {len(text.split()) for text in measured} == {60 - TEMPLATE_TOKENS}


async def test_each_cell_runs_staggered_too(tmp_path: Path) -> None:
    """Each cell runs staggered too, behind its lockstep cell, with as many requests, at both
    servers.
    """
    words = [
        "--stagger",
        "--cells=4",
        "--agents=2x2",
        "--agent-tokens=60,500",
        "--cold=-",
        "--rounds=1",
    ]
    async with open_fake_openai(FakeOpenAI()) as one, open_fake_openai(FakeOpenAI()) as other:
        words += ["--url", one.url, "--name", "one", "--url", other.url, "--name", "other"]
        status, report = await run_bench(tmp_path / "report.json", *words)
    assert status == 0
    for server in ("one", "other"):
        found = {row["cell"]: row["servers"][server] for row in report["rows"] if not row["part"]}
        assert list(found) == ["c=4", "c=4 staggered", "agents 2x2", "agents 2x2 staggered"]
        assert [row["num_requests"] for row in found.values()] == [8, 8, 4, 4]
        assert not any(row["errors"] for row in found.values())


async def test_failures_are_reported_by_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that refuses, fails, cuts, stalls and sends garbage: nothing of that counts as an
    answer, each kind is reported with an example, and the exit status is 1.
    """
    script = ["refuse", "error", "cut", "stall", "garbage", "empty", "plain", "early"]
    script += ["uncounted", "overcounted", "good", "cut"]
    fake = FakeOpenAI(script, num_good=NUM_PROBES + 2)
    async with open_fake_openai(fake):
        status, report = await run_bench(
            tmp_path / "report.json",
            *f"--url {fake.url} --cells 2 --requests 6 --rounds 1".split(),
            "--agents=-",
            "--cold=-",
            "--patience=4",
        )
    out, _ = capsys.readouterr()
    assert status == 1
    figures = rows(report, report["servers"][0]["name"])["c=2"]
    assert figures["errors"] == {
        "HTTP 429": 1,
        "error event": 1,
        "cut": 2,
        "stalled": 1,
        "garbage": 1,
        "empty": 1,
        "no stream": 1,
    }
    assert (figures["num_requests"], figures["num_answers"]) == (12, 4)
    assert figures["tokens"] == OUTPUT // 2 + OUTPUT + OUTPUT // 2 + OUTPUT
    assert (figures["num_early"], figures["num_without_usage"]) == (2, 1)
    assert figures["num_miscounted"] == 1
    assert "8 of 12" in out
    for kind, example in (
        ("HTTP 429", "too many sequences"),
        ("error event", "the engine died"),
        ("stalled", "no content for 4 s"),
        ("no stream", "data: {"),
    ):
        assert any(f"{kind}: " in line and example in line for line in out.splitlines()), kind
    assert report["servers"][0]["model"] == "fake-1"


async def test_a_cached_seed_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that has seen the prompts before is not measured with cold ones."""
    async with open_fake_openai(FakeOpenAI(cached_tokens=90)) as fake:
        words = ("--cells", "1", "--agents", "-", "--cold", "-", "--input", "100", "--rounds", "1")
        status, _ = await run_bench(tmp_path / "report.json", "--url", fake.url, *words)
    assert status == 0
    assert "90 % of the prompts came from a cache" in capsys.readouterr().out


async def test_a_key_goes_to_its_server_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key goes to the server that it is for, and into no file."""
    monkeypatch.setenv("ONE_KEY", "secret-1")
    async with open_fake_openai(FakeOpenAI()) as one, open_fake_openai(FakeOpenAI()) as other:
        words = ("--cells", "1", "--agents", "-", "--cold", "-", "--rounds", "1")
        keys = ("--key-env", "ONE_KEY", "--key-env", "-")
        report = tmp_path / "report.json"
        await run_bench(report, "--url", one.url, "--url", other.url, *keys, *words)
    assert (one.keys, other.keys) == ({"Bearer secret-1"}, set())
    assert "secret-1" not in report.read_text()


async def test_a_server_that_does_not_answer_is_one_clear_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A server that does not answer is one clear error before anything is measured."""
    async with open_fake_openai(FakeOpenAI(["refuse"])) as fake:
        words = ["bench", "http", "--url", fake.url, "--name", "x"]
        assert await trio.to_thread.run_sync(main, words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"herma: x: POST {fake.url}/chat/completions: HTTP 429: ")
    assert await trio.to_thread.run_sync(main, ["bench", "http", "--url", fake.url]) == 2
    assert "GET" in capsys.readouterr().err


async def test_an_interrupted_run_shows_what_it_has(tmp_path: Path) -> None:
    """The table and the file of an interrupted run have the turns that ended, and say that it was
    interrupted.
    """
    num_before = NUM_PROBES + 1 + 2 + 8  # two cells are warmed up, one is measured
    report = tmp_path / "report.json"
    async with open_fake_openai(FakeOpenAI(["stall"] * 8, num_good=num_before)) as fake:
        words = ["bench", "http", "--url", fake.url, "--cells=1,2", "--agents=-", "--cold=-"]
        # A suite in the background of a shell ignores SIGINT, and so would its children.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "herma", *words, "--json", str(report)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        finally:
            signal.signal(signal.SIGINT, before)
        assert process.stdout is not None
        with trio.fail_after(300):
            while len(fake.chats) <= num_before:  # noqa: ASYNC110 - the server tells nobody
                await trio.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out = b"".join([part async for part in process.stdout]).decode()
            assert await process.wait() == 130
    assert "INTERRUPTED" in out
    told = json.loads(await trio.Path(report).read_text())
    assert told["is_interrupted"]
    assert [row["cell"] for row in told["rows"]] == ["c=1"]


def test_the_options_are_the_cells() -> None:
    """The cells are those of the options, by default those of the fleet."""
    plan = plan_of(arguments(), {})
    assert [cell.name for cell in plan.cells] == [
        "c=1",
        "c=8",
        "c=64",
        "c=256",
        "agents 32x4",
        "cold 8x15000",
    ]
    assert plan.endpoints[0].url == "http://127.0.0.1:8080/v1"
    assert plan.seed != plan_of(arguments(), {}).seed
    words = ("--cells", "3,3", "--input", "9", "--agents", "2x2,4x2", "--cold", "-")
    plan = plan_of(arguments(*words, "--agent-tokens", "50,900", "--no-ignore-eos"), {})
    agents = [Agents(2, 2, 50, 900), Agents(4, 2, 50, 900)]
    assert plan.cells == (Streams(3, 9), *agents)
    assert not plan.options.ignores_eos
    assert plan_of(arguments("--cells", "-", "--agents", "-"), {}).cells == (Cold(8, 15000),)
    plan = plan_of(arguments("--cells", "8", "--agents", "-", "--cold", "-", "--stagger"), {})
    assert [cell.name for cell in plan.cells] == ["c=8", "c=8 staggered"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cells", "1,none"), "--cells: 'none' is not a positive number"),
        (("--cells", "0"), "--cells: '0' is not a positive number"),
        (("--agents", "32"), "--agents: '32' is not two numbers with 'x' between"),
        (("--agent-tokens", "4000"), "--agent-tokens: '4000' is not two numbers with ','"),
        (("--cells", "-", "--agents", "-", "--cold", "-"), "nothing to measure"),
        (("--rounds", "0"), "--rounds must be at least 1"),
        (("--patience", "0"), "--patience must be more than 0"),
        (("--url", "http://a/v1", "--url", "http://a/v1"), "servers need different names"),
        (("--name", "a", "--name", "b"), "--name was given 2 times for 1 --url"),
        (
            ("--url", "http://a", "--url", "http://b", "--key-env", "K"),
            "--key-env was given 1 times for 2",
        ),
        (("--url", "http://user:secret@a/v1"), "--url must not hold a password"),
        (("--key-env", "UNSET"), "environment variable UNSET is not set"),
        (("--text", "/nowhere/text"), "--text: .*No such file"),
    ],
)
def test_mistakes_in_the_options_are_clear(words: tuple[str, ...], message: str) -> None:
    """Each is one line that names the option."""
    with pytest.raises(ConfigError, match=message):
        plan_of(arguments(*words), {})


def test_a_url_that_is_none_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Like any other mistake."""
    assert main(["bench", "http", "--url", "localhost:8080"]) == 2
    assert "--url: 'localhost:8080' is not an http or https address" in capsys.readouterr().err


def test_text_is_the_words_of_a_file(tmp_path: Path) -> None:
    """The text is the words of a file, which needs as many words as two prompts need to differ."""
    path = tmp_path / "text"
    path.write_text("word " * 99)
    with pytest.raises(ConfigError, match="has 99 words"):
        plan_of(arguments("--text", str(path)), {})
    path.write_text("Call me Ishmael. " * 40)
    words = plan_of(arguments("--text", str(path)), {}).words
    assert (words.is_text, words.words[:3]) == (True, ("Call", "me", "Ishmael."))
