"""`prefill = "fp8"`: steps of many rows in 8 bits, all others as the checkpoint has it."""

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from config import WorkerConfig
from kernels.fp8 import DUAL_ROWS, DualWeight, quantize_rows, quantize_weight
from kernels.linear import linear, linear_add, norm_linear, norm_swiglu
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.load.test_quantize import BY_ROW, SHAPE, quantised_twins
from workers.engine.runner import ModelRunner
from workers.loop import start_table
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan


def _hidden(runner: ModelRunner, sizes: tuple[int, ...]) -> Tensor:
    """The last hidden states of one prompt in chunks."""
    ids = array("I", [(7 * i) % 150 for i in range(sum(sizes))])
    start = SequenceStart(0, ids, len(ids), SamplingParams(max_tokens=1), seed=0)
    blocks, found, begin = tuple(range(-(-len(ids) // 32))), [], 0
    for size in sizes:
        chunk = Chunk(0, begin, size, blocks, samples=False)
        plan = StepPlan(0, (start,) if begin == 0 else (), (chunk,), ())
        found += [hidden for _, hidden in runner.hidden(plan)]
        begin += size
    return torch.cat(found).double()


@pytest.fixture(name="runners", scope="module")
def _runners(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[ModelRunner, ModelRunner, ModelRunner]:
    """In 8 bits for prompts, as it is, and in 8 bits."""
    model_dir = write_tiny_model(tmp_path_factory.mktemp("model"), **SHAPE)
    changes: tuple[dict[str, Any], ...] = ({"prefill": "fp8"}, {}, {"quantization": "fp8"})
    first, second, third = [load_tiny(model_dir, token_budget=512, **each) for each in changes]
    return first, second, third


def test_small_steps_are_those_of_the_checkpoint(runners: tuple[ModelRunner, ...]) -> None:
    """Small steps equal those of the checkpoint to the bit, because their weights are the same."""
    prefill, exact, _ = runners
    sizes = (DUAL_ROWS - 1, 1, 40)
    assert torch.equal(_hidden(prefill, sizes), _hidden(exact, sizes))


def test_large_steps_are_nearly_those_of_8_bits(runners: tuple[ModelRunner, ...]) -> None:
    """Large steps round their rows too, so they are a little further off than with rounded weights
    alone.
    """
    prefill, exact, small = runners
    wanted = _hidden(exact, (300,))
    errors = [float((_hidden(r, (300,)) - wanted).norm() / wanted.norm()) for r in (prefill, small)]
    assert errors[1] < errors[0] < 3 * errors[1]


def test_facts_and_the_start_tell_its_price(runners: tuple[ModelRunner, ...]) -> None:
    """A second form of the layers' products; nothing else."""
    prefill, exact, small = runners
    assert prefill.facts.dtype == "float32+fp8prefill"
    use = prefill.device_use
    assert use.prefill_bytes == use.weights_bytes - exact.device_use.weights_bytes
    layers = small.model.weights.layers
    assert use.prefill_bytes == sum(
        getattr(layer, name).nbytes
        for layer in layers
        for name in ("qkv", "out", "gate_up", "down")
    )
    table = "\n".join(start_table(prefill.facts, "tiny", None, [], use))
    assert "of them for prompts" in table


def test_products_are_of_quantised_rows() -> None:
    """Products equal those of quantised rows by their definition, in float64."""
    generator = torch.Generator().manual_seed(1)
    x, residual = torch.randn(300, 64, generator=generator), torch.randn(300, 32)
    dense = torch.randn(32, 64, generator=generator) / 8
    weight = DualWeight(dense, quantize_weight(dense))
    values, scales = quantize_rows(x)
    narrow = weight.fp8.values.double() * weight.fp8.scales.double()[:, None]
    expected = (values.double() * scales.double()[:, None]) @ narrow.T
    torch.testing.assert_close(linear(x, weight).double(), expected, atol=1e-5, rtol=0)
    summed = linear_add(x, weight, residual.clone()).double()
    torch.testing.assert_close(summed, expected + residual.double(), atol=1e-5, rtol=0)
    norm = torch.ones(64)
    few = x[: DUAL_ROWS - 1]
    assert torch.equal(linear(few, weight), linear(few, dense))
    for product in (norm_linear, norm_swiglu):
        assert torch.equal(product(few, norm, 1e-6, weight), product(few, norm, 1e-6, dense))
        assert not torch.equal(product(x, norm, 1e-6, weight), product(x, norm, 1e-6, dense))


def test_what_has_no_16_bits_is_refused(tmp_path: Path) -> None:
    """One line that says what to remove."""
    small, _ = quantised_twins(tmp_path, BY_ROW)
    with pytest.raises(ConfigError, match="quantised already"):
        load_tiny(small, prefill="fp8")
    given = "check", "model", "check", ()
    for changes in ({"quantization": "fp8"}, {"invariant": True}, {"engine": "synthetic"}):
        with pytest.raises(ValueError, match="prefill"):
            WorkerConfig(*given, token_budget=64, prefill="fp8", **changes)  # type: ignore[misc, arg-type]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_products_on_a_card() -> None:
    """The library's product of quantised rows, as close to float64 as the reference."""
    generator = torch.Generator("cuda").manual_seed(2)
    x = torch.randn(700, 1024, generator=generator, device="cuda").bfloat16()
    dense = (torch.randn(1536, 1024, generator=generator, device="cuda") / 32).bfloat16()
    residual = torch.randn(700, 1536, generator=generator, device="cuda").bfloat16()
    norm = torch.rand(1024, generator=generator, device="cuda").bfloat16() + 0.5
    weight = DualWeight(dense, quantize_weight(dense))
    cpu = DualWeight(dense.cpu(), quantize_weight(dense.cpu()))
    for found, wanted in (
        (linear(x, weight), linear(x.cpu(), cpu)),
        (norm_linear(x, norm, 1e-6, weight), norm_linear(x.cpu(), norm.cpu(), 1e-6, cpu)),
        (norm_swiglu(x, norm, 1e-6, weight), norm_swiglu(x.cpu(), norm.cpu(), 1e-6, cpu)),
        (
            linear_add(x, weight, residual.clone()),
            linear_add(x.cpu(), cpu, residual.cpu()),
        ),
    ):
        distance = (found.cpu().double() - wanted.double()).norm() / wanted.double().norm()
        assert distance < 2e-2, distance
    few = x[: DUAL_ROWS - 1]
    assert torch.equal(linear(few, weight), linear(few, dense))
