"""`herma bench quality`: its windows, its sums and its settings."""

import argparse
import json
from pathlib import Path

import pytest
import torch

from benchmarks.engine.modes import table
from benchmarks.quality.command import parse_setting, run_command
from benchmarks.quality.measure import compare, rows
from benchmarks.quality.texts import JudgedWindow, texts_for
from protocol.errors import ConfigError
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.invariant_cases import hidden_of
from workers.model_dir import builtin_dir

TINY = builtin_dir("builtin:herma-tiny")


def test_windows_are_whole_and_know_what_is_judged(tmp_path: Path) -> None:
    """Windows are whole. The answers of conversations are judged, and all tokens of files."""
    found = texts_for("builtin:herma-tiny", TINY, (), 1000, 300, 1)
    assert list(found) == ["answers", "pages"]
    assert [len(window.ids) for window in found["pages"]] == [300, 300, 300]
    assert all(all(window.is_judged) for window in found["pages"])
    judged = [judged for window in found["answers"] for judged in window.is_judged]
    assert 0 < sum(judged) < len(judged) / 2
    text = tmp_path / "a.txt"
    text.write_text("a few words")
    ((only,),) = texts_for("builtin:herma-tiny", TINY, (text,), 1000, 300, 1).values()
    assert 1 < len(only.ids) < 12
    with pytest.raises(ConfigError, match="cannot be read"):
        texts_for("builtin:herma-tiny", TINY, (tmp_path / "b.txt",), 1000, 300, 1)
    random = texts_for("dummy:any", tmp_path, (), 64, 32, 50)
    assert [len(window.ids) for window in random["random tokens"]] == [32, 32]


@torch.inference_mode()
def test_scores_are_those_of_the_definition(tmp_path: Path) -> None:
    """Scores equal torch's own losses over the judged tokens only."""
    write_tiny_model(tmp_path)
    exact, rough = load_tiny(tmp_path), load_tiny(tmp_path, quantization="fp8")
    ids = [(11 * i) % 150 for i in range(40)]
    is_judged = [i % 3 == 0 for i in range(40)]
    score = compare(exact, rough, [JudgedWindow(ids, is_judged)])
    logits = [
        runner.model.logits(hidden_of(runner, ids, [40])).double() for runner in (exact, rough)
    ]
    places = [i - 1 for i in range(1, 40) if is_judged[i]]
    right, ours = (each[places].log_softmax(-1) for each in logits)
    following = torch.tensor([ids[place + 1] for place in places])
    loss = torch.nn.functional.nll_loss(ours, following)
    assert score.tokens == len(places)
    assert score.perplexity == pytest.approx(float(loss.exp()), rel=1e-4)
    divergence = torch.nn.functional.kl_div(ours, right, reduction="batchmean", log_target=True)
    assert score.mean_divergence == pytest.approx(float(divergence), rel=1e-2)
    assert score.agreed == int((ours.argmax(1) == right.argmax(1)).sum())
    same = compare(exact, exact, [JudgedWindow(ids, is_judged)])
    assert (same.agreement, same.divergence) == (1.0, 0.0)
    assert "| plain | text | 13 |" in "\n".join(rows({"plain": {"text": same}}))


def test_settings_are_keys_of_a_worker() -> None:
    """Anything else is named."""
    parsed = parse_setting("quantization=fp8,invariant=true")
    assert parsed == {"quantization": "fp8", "invariant": True}
    for text in ("fp8", "quant=fp8"):
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            parse_setting(text)


def test_a_run_prints_and_writes_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The built-in model with prompts in 8 bits."""
    report = tmp_path / "quality.json"
    given = argparse.Namespace(
        model="builtin:herma-tiny", setting=["prefill=fp8"], text=None, tokens=300, window=300,
        device="cpu", json=report,
    )  # fmt: skip
    assert run_command(given) == 0
    assert "| prefill=fp8 | pages | 299 |" in capsys.readouterr().out
    scores = json.loads(report.read_text())["scores"]
    assert scores["float32"]["pages"]["agreement"] == 1.0
    assert scores["prefill=fp8"]["pages"]["mean_divergence"] > 0
    given.setting = ["quantization=fp9"]
    with pytest.raises(ConfigError, match="fp9"):
        run_command(given)


def test_the_cost_of_modes_is_a_table() -> None:
    """Each beside what it takes without any."""
    found = table({"decode": 2.0}, {"invariant": {"decode": 3.0}, "prefill_fp8": {"decode": 1.0}})
    assert "| decode | 2.00 | 3.00 | 1.50 | 1.00 | 0.50 |" in found
