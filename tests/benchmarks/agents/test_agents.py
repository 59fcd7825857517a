"""`herma bench agents` against servers on loopback, and the shape of its agents."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median

import pytest
import trio

from benchmarks.agents.command import plan_of
from benchmarks.agents.shape import TOOLS, conversation, num_fitting
from benchmarks.gateway.processes import LinkKind, MeasuredFleet, MeasuredGateway, running
from herma.cli import command_parser, main
from protocol.errors import ConfigError
from tests.fakes.openai_server import FakeOpenAI, open_fake_openai


@pytest.fixture(scope="module", name="gateway")
def _gateway() -> Iterator[MeasuredGateway]:
    """A gateway with a worker that computes nothing and keeps a prefix cache."""
    with running(MeasuredFleet(step_ms=2.0, max_seqs=16), LinkKind()) as gateway:
        yield gateway


def test_conversations_have_the_reported_shape() -> None:
    """43 turns, 142k tokens, 86 % of the pauses below a second and 95 % below ten."""
    chance = Random(7)
    found = [conversation(chance) for _ in range(400)]
    assert 38 <= median(len(one) for one in found) <= 48
    assert 125_000 <= median(one[-1].prompt_tokens for one in found) <= 160_000
    pauses = [turn.pause_s for one in found for turn in one[1:]]
    assert 0.83 <= sum(pause < 1 for pause in pauses) / len(pauses) <= 0.89
    assert 0.93 <= sum(pause < 10 for pause in pauses) / len(pauses) <= 0.97
    assert all(one[-1].is_last and not one[-1].tool for one in found)
    assert {turn.tool for one in found for turn in one} == {tool.name for tool in TOOLS}


def test_a_size_multiplies_all_lengths() -> None:
    assert num_fitting(1e4, 0.01) == pytest.approx(num_fitting(1e6), rel=0.01)
    one, other = conversation(Random(1), 1.0), conversation(Random(1), 0.1)
    assert [turn.pause_s for turn in one] == [turn.pause_s for turn in other]


async def test_agents_work_at_two_servers(
    gateway: MeasuredGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each multiple runs at each; turns find their prefix in the cache of a real worker."""
    report = tmp_path / "agents.json"
    async with open_fake_openai(FakeOpenAI()) as fake:
        words = [
            "bench", "agents", "--url", f"http://127.0.0.1:{gateway.port}/v1", "--name", "ours",
            "--model", "m", "--url", fake.url, "--name", "fake", "--model", "x",
            "--kv-tokens", "1200", "--size", "0.004", "--ratios", "1,2", "--seconds", "4",
            "--warm", "0.5", "--output", "4", "--seed", "3", "--json", str(report),
        ]  # fmt: skip
        status = await trio.to_thread.run_sync(main, words)
    out, err = capsys.readouterr()
    assert status == 0, err
    rows = json.loads(await trio.Path(report).read_text())["rows"]
    assert [(row["ratio"], row["server"]) for row in rows] == [
        (1.0, "ours"),
        (1.0, "fake"),
        (2.0, "fake"),
        (2.0, "ours"),
    ]
    assert all(row["num_turns"] > 0 and row["tokens_per_s"] > 0 for row in rows)
    assert rows[3]["num_agents"] == 2 * rows[0]["num_agents"]
    ours = [row for row in rows if row["server"] == "ours"]
    assert all(row["hit_rate"] > 0 and row["first_ms_p90"] > 0 for row in ours)
    assert "| 2x: " in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ratios", "1,x"), "--ratios"),
        (("--ratios", "0"), "more than 0"),
        (("--seconds", "0"), "--seconds"),
        (("--warm", "-1"), "--warm"),
    ],
)
def test_mistakes_in_the_options_are_clear(words: tuple[str, ...], message: str) -> None:
    arguments = command_parser().parse_args(["bench", "agents", "--kv-tokens", "1000", *words])
    with pytest.raises(ConfigError, match=message):
        plan_of(arguments, {})
