"""The benchmark of drafts: schedules are met, the table says what was measured."""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from benchmarks.speculation import command
from benchmarks.speculation.measure import SpeculationFigure
from benchmarks.speculation.profile import DeviceSpan, summary
from benchmarks.speculation.synthetic import drafter_config, expected_length, rates_of
from benchmarks.speculation.table import acceptances, rows, verdicts
from kernels.experts import Routing
from protocol.errors import ConfigError
from tests.fakes.tiny_models import write_tiny_model
from workers.engine.drafting import dummy
from workers.engine.drafting.description import read_drafter
from workers.engine.models.description import Experts
from workers.engine.models.dummy import draw_weights
from workers.engine.models.model_config import read_model_config
from workers.model_dir import dummy_dir

NAMES = ("acceptance", "text", "json", "plot", "dtype", "drafter_fp8")


def _arguments(**given: Any) -> argparse.Namespace:
    defaults: dict[str, Any] = dict.fromkeys(NAMES)
    defaults |= {
        "batches": "1,3", "depths": "0-2", "prompts": 1, "prompt_tokens": 24, "outputs": 60,
        "temperature": 0.0, "fp8": False, "fixed_only": False, "profile": False, "device": "cpu",
        "rounds": 1, "cpu_time": False,
    }  # fmt: skip
    return argparse.Namespace(**{**defaults, **given})


def test_the_schedules_have_the_lengths_of_vllm() -> None:
    """Five at 1 and one at 0.3 are 6.3 tokens; so are 15 at 0.854."""
    assert expected_length(rates_of("vllm"), 15) == pytest.approx(6.3)
    assert expected_length(rates_of("constant"), 15) == pytest.approx(6.3, abs=0.02)
    assert rates_of("0.5,0.25") == (0.5, *[0.25] * 14)
    for wrong in ("no", "0.5,2"):
        with pytest.raises(ConfigError, match="--acceptance"):
            rates_of(wrong)


@pytest.mark.parametrize(
    ("kind", "rounds"), [pytest.param("dflash", 2, marks=pytest.mark.slow), ("mtp", 1)]
)
def test_drafts_are_accepted_by_the_schedule(
    kind: str,
    rounds: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafts of a model without trained weights are accepted as the schedule says, at every depth;
    each depth has its row.
    """
    path = write_tiny_model(tmp_path / "model", num_hidden_layers=5)
    monkeypatch.setattr(command, "loads_for", _random_loads)
    report = tmp_path / "report.json"
    arguments = _arguments(
        model=str(path), drafter=kind, acceptance="0.9,0.5", json=report, batches="3",
        rounds=rounds, cpu_time=True,
    )  # fmt: skip
    assert command.run_command(arguments) == 0
    shown = capsys.readouterr().out
    assert "| random | 3 |" in shown
    assert "synthetic acceptance 0.9,0.5: 2.35 tokens" in shown
    import json

    figures = {f["way"]: f for f in json.loads(report.read_text())["figures"]}
    assert set(figures) == {"none", "idle", "1", "2", "adaptive"}
    first, second = figures["2"]["acceptance"]
    assert 0.8 < first < 1.0
    assert 0.3 < second < 0.7
    assert 2.0 < figures["2"]["length"] < 2.6
    assert figures["2"]["step_ms"] > figures["2"]["draft_ms"] > 0.0
    assert figures["none"]["acceptance"] == []


def _random_loads(*_: Any, count: int, sampling: Any, **__: Any) -> list[Any]:
    from benchmarks.speculation.measure import SpeculationLoad

    prompts = tuple([tuple(range(1 + at, 20 + at)) for at in range(count)])
    return [SpeculationLoad("random", prompts, sampling)]


def test_the_verdict_follows_the_figures() -> None:
    """A gain within the noise is none; the best depth is named."""
    figures = [
        SpeculationFigure("chat", 1, "none", 100.0, 1.0, ()),
        SpeculationFigure("chat", 1, "3", 180.0, 2.5, (0.9, 0.6, 0.1)),
        SpeculationFigure("chat", 1, "adaptive", 175.0, 2.4, ()),
        SpeculationFigure("chat", 8, "none", 700.0, 1.0, ()),
        SpeculationFigure("chat", 8, "3", 710.0, 2.5, (0.9,)),
    ]
    assert verdicts(figures) == [
        "chat, 1 at once: yes, 3 drafts: 1.80 times; adaptive depth gives 1.75",
        "chat, 8 at once: no",
    ]
    table = rows(figures)
    assert table[2] == "| chat | 1 | 100 | 180 | 175 | 3 | 1.80 | 2.50 |"
    assert table[3] == "| chat | 8 | 700 | 710 |  | 3 | 1.01 | 2.50 |"
    assert acceptances(figures)[0].endswith("accepted by place: 0.90, 0.60, 0.10")


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    """Drafts of nothing, by nothing, or of a model whose head is its embedding."""
    untied = write_tiny_model(tmp_path / "untied", num_hidden_layers=5)
    tied = write_tiny_model(tmp_path / "tied", num_hidden_layers=5, tie_word_embeddings=True)
    for changes, reason in (
        ({"model": str(untied), "drafter": "mtp"}, "needs --acceptance"),
        ({"model": str(tied), "drafter": "mtp", "acceptance": "1"}, "head is not its embedding"),
        ({"model": str(untied), "drafter": "/nowhere/at/all"}, "--drafter|neither"),
        ({"model": str(untied), "drafter": "mtp", "batches": "many"}, "--batches"),
    ):
        with pytest.raises(ConfigError, match=reason):
            command.run_command(_arguments(**changes))


def test_a_mixture_is_drafted_for_by_a_mixture(tmp_path: Path) -> None:
    """A mixture is drafted for by a mixture, as in checkpoints: the drafter's layer has as many
    experts as the model's last one.
    """
    target = read_model_config(dummy_dir("dummy:qwen3.6-35b-a3b"))
    (tmp_path / "config.json").write_text(json.dumps(drafter_config("mtp", target)))
    (layer,) = read_drafter(tmp_path, target).network.layers
    assert layer.mlp == target.layers[-1].mlp
    assert layer.mixer == target.attention


@pytest.mark.parametrize("draws", [True, False])
def test_a_drawn_mixture_draws_its_experts_if_asked(*, draws: bool) -> None:
    """A drawn mixture draws its experts if asked, from its first row on: rows of drawn weights
    would all choose the same.
    """
    config = read_model_config(dummy_dir("dummy:qwen3.6-35b-a3b"))
    mixed = next(layer for layer in config.layers if layer.mixer == config.attention)
    small = Experts(width=32, routing=Routing(4, 2), shared_width=32, shared_gate=True)
    layers = (msgspec.structs.replace(mixed, mlp=small),)
    shape = msgspec.structs.replace(config, hidden_size=64, layers=layers)
    found = draw_weights(shape, torch.device("meta"), torch.bfloat16)
    target: Any = SimpleNamespace(device=torch.device("cpu"), weights=found)
    (layer,) = dummy._drawn(shape, target, draws_experts=draws).layers
    assert layer.experts is not None
    assert (layer.experts.drawn is not None) == draws
    if layer.experts.drawn is not None:
        assert layer.experts.drawn.state[0] == 1


def test_what_a_card_does_is_summed_up() -> None:
    """Busy, waiting for the host, or between two kernels; what overlaps counts once."""
    spans = [
        DeviceSpan("a", 100.0, 1100.0), DeviceSpan("b", 1050.0, 1200.0),
        DeviceSpan("a", 1203.0, 2203.0), DeviceSpan("b", 2403.0, 2503.0),
    ]  # fmt: skip
    head, first, second, rest = summary(spans, 2)
    assert head == (
        "  2 steps, each busy 1.10 ms, idle between kernels 0.00, waiting for the host 0.10; "
        "2 kernels and copies"
    )
    assert first.split() == ["1.000", "ms", "1.0", "x", "a"]
    assert second.split() == ["0.125", "ms", "1.0", "x", "b"]
    assert rest.split() == ["0.000", "ms", "0.0", "x", "others"]
    assert summary([], 3) == []
