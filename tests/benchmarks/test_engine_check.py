"""The check of answers finds wrong kernels: 36 layers in bfloat16, each fault in one operation; a
hybrid in 8 bits, each fault in one row of the decodes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.drive import fresh_runner
from benchmarks.engine import check
from benchmarks.engine import reference as plain_torch
from benchmarks.engine.cases import EngineBench
from benchmarks.engine.check import check_answers
from benchmarks.engine.client import BenchClient, EngineAnswer, EngineRequest, MemoryChannel
from benchmarks.engine.engine import MeasuredEngine
from benchmarks.engine.peer import EngineBar
from benchmarks.engine.reference import ReferencePart
from benchmarks.engine.scale import SMOKE
from benchmarks.engine.verdict import (
    RULE,
    AnswerVerdict,
    Evidence,
    JudgedAnswer,
    doubt,
    failures,
    judge,
)
from config import DUMMY_PREFIX, WorkerConfig
from kernels.attention import attend
from kernels.experts import reference as mixtures
from kernels.fp8 import reference as fp8
from kernels.linear import Op, linear_add, norm_swiglu, reference
from kernels.linear.choose import choose
from kernels.linear.config import Skinny
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import write_tiny_model
from workers.engine.models import network
from workers.engine.models.description import Experts
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner

LAYERS, HEADS, DIM = 36, 4, 32
SHAPE: dict[str, Any] = {
    "num_hidden_layers": LAYERS,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": DIM,
    "vocab_size": 2_048,
}

Wrong = Callable[[pytest.MonkeyPatch], None]


def _runner(home: Path, *, num_layers: int = LAYERS, **changes: Any) -> ModelRunner:
    shape = {**SHAPE, "num_hidden_layers": num_layers}
    return _loaded(write_tiny_model(home, dtype="bfloat16", **shape), **changes)


def _loaded(model: Path, **changes: Any) -> ModelRunner:
    sizes = {"max_seqs": 4, "token_budget": 256}
    config = WorkerConfig(
        name="bench",
        model=f"{DUMMY_PREFIX}{model}",
        serves="model",
        gateways=(),
        device="cpu",
        dtype="bfloat16",
        **{**sizes, **changes},
    )
    return load_runner(config, lambda *_: None)


@pytest.fixture(name="plain", scope="module")
def _plain(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    """The weights that the faults are tried on."""
    return _runner(tmp_path_factory.mktemp("plain"))


def _answers(runner: ModelRunner) -> list[EngineAnswer]:
    found: list[EngineAnswer] = []
    generator = torch.Generator().manual_seed(5)
    prompts = torch.randint(0, 2_048, (3, 60), generator=generator).tolist()
    requests = [
        EngineRequest(prompt, 32, temperature, seed=9)
        for prompt, temperature in zip(prompts, (0.0, 0.0, 0.6), strict=True)
    ]
    MeasuredEngine(runner, max_waiting=4).serve(lambda client: _call(client, requests, found))
    return found


def _call(client: BenchClient, requests: list[EngineRequest], found: list[EngineAnswer]) -> None:
    found.extend(client.call(requests)[0])


def _positions_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """Decoded rows are turned as if they stood one place further; prompts are right."""

    def wrong(
        qkv: Tensor, norm: Tensor, eps: float, angles: Tensor, *rest: Any, **scope: Any
    ) -> Tensor:
        decodes = qkv.shape[0] < 60
        return attend(qkv, norm, eps, angles.roll(-1, 0) if decodes else angles, *rest, **scope)

    patch.setattr(network, "attend", wrong)


def _one_head_swapped(patch: pytest.MonkeyPatch) -> None:
    """The first two heads' results change places."""

    def wrong(*arguments: Any, **scope: Any) -> Tensor:
        heads = attend(*arguments, **scope).view(-1, HEADS, DIM)
        return heads[:, [1, 0, 2, 3]].reshape(-1, HEADS * DIM)

    patch.setattr(network, "attend", wrong)


def _a_norm_skipped_in_one_layer(patch: pytest.MonkeyPatch) -> None:
    """The MLP of every 36th call takes its rows as they are."""
    calls = 0

    def wrong(x: Tensor, norm: Tensor, eps: float, gate_up: Tensor, **_: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls % LAYERS != LAYERS // 2:
            return norm_swiglu(x, norm, eps, gate_up)
        gate, up = (x @ gate_up.T).chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    patch.setattr(network, "norm_swiglu", wrong)


def _scores_a_tenth_too_large(patch: pytest.MonkeyPatch) -> None:
    """Queries and keys are 5 % too long."""

    def wrong(qkv: Tensor, norm: Tensor, *rest: Any, **scope: Any) -> Tensor:
        return attend(qkv, norm * 1.05, *rest, **scope)

    patch.setattr(network, "attend", wrong)


def _sums_of_too_few_bits(patch: pytest.MonkeyPatch) -> None:
    """The residual keeps 5 bits of bfloat16's 8."""

    def wrong(*arguments: Any, **given: Any) -> Tensor:
        return (linear_add(*arguments, **given).view(torch.int16) & ~7).view(torch.bfloat16)

    patch.setattr(network, "linear_add", wrong)


@pytest.mark.parametrize(
    ("quantization", "num_layers"),
    [("auto", LAYERS), pytest.param("fp8", LAYERS // 3, marks=pytest.mark.slow)],
)
def test_a_right_engine_passes(quantization: str, num_layers: int, tmp_path: Path) -> None:
    """The check finds a right engine right, and is sure of enough tokens to say so. A CPU is slow
    at products in 8 bits: every run has those of a hybrid, below.
    """
    runner = _runner(tmp_path, num_layers=num_layers, quantization=quantization)
    checked = check_answers(runner, _answers(runner))
    assert failures(checked) == []
    assert doubt(checked) is None
    bounds, blind = (sum(getattr(one, key) for one in checked) for key in ("bound", "blind"))
    assert bounds < 0.25 * blind


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(_positions_off_by_one, marks=pytest.mark.slow),
        _one_head_swapped,
        pytest.param(_a_norm_skipped_in_one_layer, marks=pytest.mark.slow),
        pytest.param(_scores_a_tenth_too_large, marks=pytest.mark.slow),
        _sums_of_too_few_bits,
    ],
)
def test_a_wrong_kernel_is_found(
    fault: Wrong, plain: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault is far below what one would see in a text."""
    runner = fresh_runner(plain)
    fault(monkeypatch)
    found = failures(check_answers(runner, _answers(runner)))
    assert any("wrong tokens" in line or "together" in line for line in found), found


NUM_ROWS, WRONG_ROW = 8, 5


@pytest.fixture(name="hybrid", scope="module")
def _hybrid(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    """In 8 bits, with a full attention behind every three recurrent layers."""
    layers = (["linear_attention"] * 3 + ["full_attention"]) * 3
    model = write_family(
        tmp_path_factory.mktemp("hybrid"), "qwen3_5", hidden_size=64, intermediate_size=192,
        num_hidden_layers=len(layers), layer_types=layers, vocab_size=2_048,
    )  # fmt: skip
    return _loaded(model, max_seqs=NUM_ROWS, token_budget=1024, quantization="fp8", threads=1)


@pytest.fixture(name="_rounding")
def _as_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of several rows by a weight in 8 bits round them too, by the rule of the kernels."""

    def rounds(num_rows: int, weight: Any) -> bool:
        config = choose(Op.LINEAR, num_rows, *weight.shape, torch.bfloat16, 1)
        return config is None or (isinstance(config, Skinny) and config.quantises)

    monkeypatch.setattr(reference, "rounds_rows", rounds)


def _decodes(runner: ModelRunner) -> list[EngineAnswer]:
    """Eight greedy answers at once."""
    generator = torch.Generator().manual_seed(5)
    prompts = torch.randint(0, 2_048, (NUM_ROWS, 24), generator=generator).tolist()
    requests = [EngineRequest(prompt, 48) for prompt in prompts]
    found: list[EngineAnswer] = []
    MeasuredEngine(runner, max_waiting=NUM_ROWS).serve(
        lambda client: _call(client, requests, found)
    )
    return found


@pytest.mark.usefixtures("_rounding")
def test_decodes_are_checked_with_the_rows_rounded_that_kernels_round(
    hybrid: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that takes decodes of eight for unrounded blames an engine that is right: its noise
    is a third of theirs.
    """
    answers = _decodes(fresh_runner(hybrid))
    checked = check_answers(hybrid, answers)
    assert failures(checked) == []
    assert doubt(checked) is None
    parts = (ReferencePart(24, 8 * 24, 8), ReferencePart(47, 1, 1))
    monkeypatch.setattr(check, "_parts", lambda *_: parts)
    assert "wrong tokens" in failures(check_answers(hybrid, answers))[0]


def _scale_of_another_row(patch: pytest.MonkeyPatch) -> None:
    """A fault: each row of 8-bit numbers has the scale of the row before it."""
    quantize_rows = fp8.quantize_rows

    def wrong(*arguments: Any) -> tuple[Tensor, Tensor]:
        values, scales = quantize_rows(*arguments)
        if len(scales) == NUM_ROWS:
            scales = scales.clone()
            scales[WRONG_ROW] = scales[WRONG_ROW - 1]
        return values, scales

    patch.setattr(fp8, "quantize_rows", wrong)


def _a_quarter_of_the_columns_lost(patch: pytest.MonkeyPatch) -> None:
    """The last of four parts of each product is not added."""

    def wrong(x: Tensor, *rest: Any, **given: Any) -> Tensor:
        if len(x) == NUM_ROWS:
            x = x.clone()
            x[WRONG_ROW, -x.shape[1] // 4 :] = 0
        return linear_add(x, *rest, **given)

    patch.setattr(network, "linear_add", wrong)


def _gates_of_another_row(patch: pytest.MonkeyPatch) -> None:
    """Two rows of a tile are the same one."""

    def wrong(x: Tensor, *rest: Any, **given: Any) -> Tensor:
        out = norm_swiglu(x, *rest, **given)
        if len(x) == NUM_ROWS:
            out[WRONG_ROW] = out[WRONG_ROW - 1]
        return out

    patch.setattr(network, "norm_swiglu", wrong)


FAULTS = [_scale_of_another_row, _a_quarter_of_the_columns_lost, _gates_of_another_row]


@pytest.mark.usefixtures("_rounding")
@pytest.mark.parametrize(
    "fault", [FAULTS[0], *[pytest.param(fault, marks=pytest.mark.slow) for fault in FAULTS[1:]]]
)
def test_a_fault_in_one_row_of_the_decodes_is_found(
    fault: Wrong, hybrid: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in one row of the decodes is found in that row's answer, and in no other."""
    with monkeypatch.context() as patch:
        fault(patch)
        answers = _decodes(fresh_runner(hybrid))
    checked = check_answers(hybrid, answers)
    assert [at for at, one in enumerate(checked) if not one.is_right] == [WRONG_ROW]


@pytest.fixture(name="dense", scope="module")
def _dense(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    """In 8 bits, with attention in every layer."""
    home = tmp_path_factory.mktemp("dense")
    sizes: dict[str, Any] = {"max_seqs": NUM_ROWS, "token_budget": 1024, "quantization": "fp8"}
    return _runner(home, num_layers=LAYERS // 3, **sizes, threads=1)


@pytest.mark.slow
def test_rows_rounded_at_every_batch_are_checked(
    dense: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right engine passes and a fault in one row is found where all products of all steps round:
    the noise is an eighth of the logits' spread there, as of Qwen3-8B on a card.
    """
    monkeypatch.setattr(reference, "rounds_rows", lambda *_: True)
    monkeypatch.setattr(plain_torch, "rounds_rows", lambda *_, **__: True)
    answers = _decodes(fresh_runner(dense))
    checked = check_answers(dense, answers)
    assert failures(checked) == []
    assert doubt(checked) is None
    for fault in FAULTS:
        with monkeypatch.context() as patch:
            fault(patch)
            answers = _decodes(fresh_runner(dense))
        checked = check_answers(dense, answers)
        assert [at for at, one in enumerate(checked) if not one.is_right] == [WRONG_ROW]


def test_experts_of_rows_that_kernels_round_are_checked_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check rounds the rows of both products, only in steps of as many rows as the kernels
    round.
    """
    model = write_family(tmp_path, "qwen3_moe", vocab_size=256)
    loaded = _loaded(model, quantization="fp8", threads=1).model
    layer, mlp = loaded.weights.layers[0], loaded.config.layers[0].mlp
    assert isinstance(mlp, Experts)
    x = torch.randn(8, loaded.config.hidden_size, generator=torch.Generator().manual_seed(3))
    x = x.bfloat16()
    steps = plain_torch.Rows(((5, 600), (3, 1)), invariant=False)
    plain = plain_torch._mixed(mlp, layer, x, steps)
    monkeypatch.setattr(plain_torch, "rounds_experts", lambda x, *_, **__: x.shape[0] > 512)
    found = plain_torch._mixed(mlp, layer, x, steps)
    torch.testing.assert_close(found[5:], plain[5:])
    routed = plain_torch._routed(mlp, layer, x)
    monkeypatch.setattr(mixtures, "activate", _then_rounded(mixtures.activate))
    none = plain_torch.Rows((), invariant=False)
    wanted = plain_torch._summed(mlp, layer, _rounded(x), routed, none)
    off, moved = ((found[:5] - other[:5]).float().norm() for other in (wanted, plain))
    assert off < moved / 8
    assert moved > 0.005 * found[:5].float().norm()


def _rounded(x: Tensor) -> Tensor:
    values, scales = fp8.quantize_rows(x, None, 0.0)
    return (values.float() * scales[:, None]).to(x.dtype)


def _then_rounded(activate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *given: _rounded(activate(*given))


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_all_rows_of_a_small_batch_are_checked(batch: int) -> None:
    """All rows of a small batch are checked. In a larger batch eight rows are checked, the first
    and the last included, because a fault may be in any row.
    """
    bench = EngineBench(
        BenchClient(MemoryChannel()), SMOKE, None, 99, lambda _: EngineBar(), lambda _: 0
    )
    answers = [EngineAnswer(EngineRequest([number], 1)) for number in range(batch)]
    bench.sample_rows(answers)
    kept = [answer.request.prompt[0] for answer in bench.samples]
    assert len(set(kept)) == len(kept) == min(batch, NUM_ROWS)
    assert {0, batch - 1} <= set(kept)


def _evidence(leads: list[float], gaps: list[float]) -> Evidence:
    return Evidence(8, 0.0, 0.02, torch.tensor(leads), torch.tensor(gaps).unsqueeze(1))


def test_one_lead_too_large_is_wrong() -> None:
    """Nine times the noise is more than chance; as much noise as allowed is not."""
    gaps = [5.0, 30.0, 30.0, 30.0]
    assert judge(_evidence([5.0, 0.0, 0.0, 0.0], gaps)).is_right
    assert not judge(_evidence([0.0, 9.0, 0.0, 0.0], [30.0, 9.0, 30.0, 30.0])).is_right
    assert not judge(_evidence([float("nan"), 0.0, 0.0, 0.0], gaps)).is_right


def test_many_small_leads_are_wrong() -> None:
    """Each of them could be, but not all."""
    checked = judge(_evidence([5.0] * 20, [5.0] * 20))
    assert checked.lead < 8.0
    assert not checked.is_right


def test_all_answers_are_judged_together() -> None:
    """Leads that each answer may have may be too many for all of them."""
    one = judge(_evidence([4.0] * 2 + [0.0] * 18, [4.0] * 20))
    assert one.leads > one.expected
    assert one.is_right
    assert failures([one] * 2) == []
    (line,) = failures([one] * 40)
    assert "together" in line


def test_a_check_amid_noise_says_nothing() -> None:
    """Amid noise the check says neither that tokens are right nor that one is wrong; a wrong one is
    found all the same.
    """
    unsure: JudgedAnswer = judge(_evidence([0.0] * 10, [0.5] * 10))
    assert failures([unsure]) == []
    said = doubt([unsure])
    assert said is not None
    assert "nothing is said" in said
    assert doubt([]) is not None
    assert "wrong tokens" in failures([judge(_evidence([9.0] + [0.0] * 9, [0.5] * 10))])[0]
    assert len({verdict.exit_status for verdict in AnswerVerdict} | {2}) == len(AnswerVerdict) + 1


ROUNDED = 0.15
"""Noise of Qwen3-8B in 8 bits on an H200, whose kernels round x for 8 and 64 rows (17 answers)."""


def _drawn(noises: Sequence[float]) -> list[JudgedAnswer]:
    """Answers of 64 tokens among 151,936 with so much noise each, in units of plain torch's."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for noise in noises:
        scores = torch.randn(64, 151_936, generator=generator) / ROUNDED
        best = scores.topk(32).values
        chosen = (scores + noise * torch.randn(scores.shape, generator=generator)).argmax(1)
        leads = best[:, 0] - scores.gather(1, chosen.unsqueeze(1)).squeeze(1)
        found.append(judge(Evidence(128, 0.0, ROUNDED, leads, best[:, :1] - best[:, 1:])))
    return found


def test_rounded_rows_leave_the_check_its_power() -> None:
    """Half of the next tokens are within such noise. As much of it as plain torch has is right, and
    one answer with three times as much is found, alone.
    """
    right = _drawn([1.0] * 6)
    assert failures(right) == []
    assert doubt(right) is None
    assert all(one.bound < 0.4 * one.blind for one in right)
    wrong = _drawn([1.0] * 5 + [3.0])
    assert [one.is_right for one in wrong] == [True] * 5 + [False]


def test_what_noise_makes_of_a_lead_is_its_mean() -> None:
    """What noise makes of a lead is its mean, and not a bound on it, as many draws show."""
    gaps = torch.tensor([[0.3, 0.6, 0.8, 1.5, 4.0]])
    judged = judge(Evidence(8, 0.0, ROUNDED, torch.zeros(1), gaps))
    behind = torch.cat((torch.zeros(1, 1), gaps), dim=1)
    generator = torch.Generator().manual_seed(4)
    noise = RULE * torch.randn(200_000, 6, generator=generator)
    leads = behind[0, (noise - behind).argmax(1)]
    assert judged.expected == pytest.approx(float(leads.mean()), rel=0.01)
    assert judged.variance == pytest.approx(float(leads.var()), rel=0.02)
