"""The checks for a card, run on a small model on the CPU."""

import json
import math
from pathlib import Path

import pytest

from tests.gpu_parity.__main__ import Parity, main
from tests.gpu_parity.report import at_least, at_most, exactly
from tests.gpu_parity.scale import TINY


def test_every_check_holds_for_a_small_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints its table, writes it as JSON and ends with 0."""
    result = tmp_path / "result.json"
    arguments = ["gpu_parity", "--tiny", "--device", "cpu", "--json", str(result)]
    monkeypatch.setattr("sys.argv", arguments)
    code = main()
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert "| greedy, budget 16: wrong tokens of 200 | 0 | = 0 | yes |" in printed
    report = json.loads(result.read_text())
    assert all(check["ok"] for check in report["checks"])
    assert all(value > 0 for value in report["figures"].values())


def test_a_wrong_engine_is_found(tmp_path: Path) -> None:
    """An engine with one wrong layer fails in its logits and in its tokens."""
    parity = Parity(TINY, "cpu", tmp_path)
    layer = parity.runner.model.weights.layers[1]
    layer.qk_norm.copy_(layer.qk_norm.flip(-1))
    wrong = {check.name for check in parity.checks() if not check.ok}
    assert "logit error, root mean square" in wrong
    assert "greedy, budget 16: wrong tokens of 200" in wrong


def test_no_number_is_no_success() -> None:
    """A check whose value is NaN has failed."""
    made = [make("x", math.nan, 1.0) for make in (at_most, at_least, exactly)]
    assert not any(check.ok for check in made)
