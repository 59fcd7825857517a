"""`herma plan`: what a model takes on a card, from its config.json alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from herma.cli import main
from herma.plan_command import Card, this_card
from tests.fakes.model_hub import model_hub
from tests.fakes.tiny_families import FAMILIES, write_family
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.herma.doctor.machine import Machine
from workers.engine.memory.forecast import Choice, forecast, kv_token_bytes, weights_bytes
from workers.engine.models.model_config import read_model_config
from workers.model_dir import dummy_dir

PLAIN = Choice(weights="bfloat16", fp8_kv=False, token_budget=4096, max_context=131_072)
GB = 10**9
ASSUMED = Card(24 * GB, " (24GB assumed: no card was found here, --card names one)")


def _printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["plan", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_the_table_names_all_parts(capsys: pytest.CaptureFixture[str]) -> None:
    """8.19 billion numbers in 16 bits, 36 layers x 8 heads x 128 x 2 a token; 8 bits fit."""
    status, out, _ = _printed(capsys, "dummy:qwen3-8b", "--card", "24GB")
    assert status == 0
    names = [line.split("  ")[0] for line in out.splitlines()[:8]]
    expected = ["model", "card", "weights", "keys, values", "states", "snapshots", "graphs"]
    assert names == [*expected, "largest step"]
    assert "15.26 GiB (bfloat16), 8.79 GiB (fp8), 5.70 GiB (int4)" in out
    assert "144 KiB (bfloat16), 72 KiB (fp8) a token" in out
    assert [line.split()[0] for line in out.splitlines()[10:]] == [
        name for name in ("latency", "balanced", "throughput") for _ in range(5)
    ]


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("143771, NVIDIA H200\n24564, other", Card(143_771 * 2**20, " (NVIDIA H200)")),
        # Memory that the card shares with the host has no size of its own.
        ("[N/A], NVIDIA GB10", ASSUMED),
        (None, ASSUMED),
    ],
)
def test_the_card_is_this_hosts_unless_named(
    listed: str | None, expected: Card, tmp_path: Path
) -> None:
    """The first one listed; else a size that is said to be assumed."""
    machine = Machine(tmp_path)
    if listed is not None:
        machine.answer(
            "nvidia-smi --query-gpu=memory.total,name --format=csv,noheader,nounits", listed
        )
    assert this_card(machine.host) == expected


def test_a_built_in_model_needs_no_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    """As for `herma up --model`; another word names all forms that there are."""
    assert _printed(capsys, "herma-tiny", "--card", "1GB")[1].startswith("model         Qwen3: 8 l")
    assert "built in: builtin:herma-tiny" in _printed(capsys, "herma-tinny")[2]


def test_what_does_not_fit_says_how_much_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """And the command fails if nothing fits."""
    status, out, _ = _printed(capsys, "dummy:qwen3-32b", "--card", "16GB", "--window", "4096")
    assert status == 1
    assert out.count("does not fit") == 15
    assert "GiB missing" in out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("dummy:qwen3-8b", "--card", "large"), "24GB"),
        (("dummy:qwen3-8b", "--window", "99999"), "at most 40960"),
        (("dummy:none",), "dummy:none"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: str
) -> None:
    """Sizes, windows and models."""
    status, _, error = _printed(capsys, *arguments)
    assert status == 2
    assert named in error
    assert error.count("\n") == 1


def test_of_a_model_of_the_hub_only_the_configuration_is_fetched(tmp_path: Path) -> None:
    """The library reads its environment when it is imported, so it gets a process of its own."""
    write_tiny_model(tmp_path / "repos/owner/whole")
    with model_hub(tmp_path / "repos") as hub:
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, "-m", "herma", "plan", "owner/whole"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        fetched = set(hub.fetched)
    assert done.returncode == 0, done.stderr
    assert "2 layers of 48" in done.stdout
    assert fetched == {"config.json"}


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "phi4-mini", "qwen3_5"])
def test_weights_and_tokens_are_those_of_a_start(family: str, tmp_path: Path) -> None:
    """But for norms and biases, which are a few percent of a model so small."""
    assert family in FAMILIES
    runner = load_tiny(write_family(tmp_path, family), kv_tokens=1024, context_length=512)
    config = read_model_config(tmp_path)
    taken = runner.model.weights.num_bytes() / 2  # float32
    assert 0.95 * taken < weights_bytes(config, "bfloat16") <= taken
    tokens = (runner.cache.num_blocks + 1) * runner.cache.block_size
    assert runner.cache.num_bytes() / 2 == tokens * kv_token_bytes(config, PLAIN)
    # Eight sequences, a slot for padding, and prefixes.
    num_states = 0 if runner.facts.snapshots is None else 9 + runner.facts.snapshots
    assert runner.state_bytes == num_states * config.state_bytes(4)


def test_a_hybrid_keeps_states_beside_keys_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    """48 x (48 x 128 x 128 x 4 + 3 x 10,240 x 2) bytes a sequence, and keys in every fourth layer;
    an eighth of what weights leave is for sequences, as much for prefixes.
    """
    status, out, _ = _printed(capsys, "dummy:qwen3.6-27b", "--card", "141GB")
    assert status == 0
    assert "states        146.8 MiB a sequence, in 48 recurrent layers" in out
    assert "64 KiB (bfloat16), 32 KiB (fp8) a token" in out
    table = out.splitlines()[9:]
    assert table[0].split()[-2:] == ["max_seqs", "snapshots"]
    assert table[1].split()[-2:] == ["70", "70"]
    config = read_model_config(dummy_dir("dummy:qwen3.6-27b"))
    found = forecast(config, 141 * GB, PLAIN, 32)
    room = 141 * GB - found.weights_bytes
    assert 0.1 < found.max_seqs * found.state_bytes / room <= 0.125


def test_more_memory_holds_more_and_longer_windows_fewer() -> None:
    """Tokens grow with the card; a window that does not fit is cut to what does."""
    config = read_model_config(dummy_dir("dummy:qwen3-4b"))
    small, large = (forecast(config, size * GB, PLAIN, 32) for size in (16, 80))
    assert small.kv_tokens < large.kv_tokens
    assert large.window == config.max_position_embeddings
    assert large.whole_windows == large.kv_tokens // large.window
    tight = forecast(config, 11 * GB, PLAIN, 32)
    assert 0 < tight.window == tight.kv_tokens < config.max_position_embeddings
    assert tight.missing_bytes > 0
