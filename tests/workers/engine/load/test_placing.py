"""Experts in MXFP4 that are placed behind a load, and again at a wake."""

from functools import partial
from pathlib import Path

import pytest
import torch

from kernels.mxfp4 import Mxfp4Weight, dequantise
from tests.fakes.tiny_families import write_family
from tests.workers.engine.load.test_expert_formats import MXFP4, expert_twins, in_mxfp4
from workers.engine.load import placing
from workers.engine.load.placing import place_experts
from workers.engine.models.description import ModelDescription
from workers.engine.models.model_config import read_model_config
from workers.engine.models.weight_reader import load_weights
from workers.engine.models.weights import ModelWeights
from workers.engine.sleep.read_again import LayerChange, read_again
from workers.engine.sleep.weight_tensors import tensors_of

CPU = torch.device("cpu")


def _read(folder: Path, shape: ModelDescription, change: LayerChange | None = None) -> ModelWeights:
    return load_weights(folder, shape, CPU, torch.bfloat16, lambda *_: None, change=change)


def _stacks(weights: ModelWeights) -> list[Mxfp4Weight]:
    found = [stack for layer in weights.layers for stack in (layer.gate_up, layer.down)]
    return [stack for stack in found if isinstance(stack, Mxfp4Weight)]


@pytest.mark.parametrize("is_read", [True, False])
def test_experts_are_placed_behind_a_load_and_at_a_wake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_read: bool
) -> None:
    """Experts are placed where kernels read them so, in the memory that they have; weights that
    are read again at a wake are as they were.
    """
    monkeypatch.setattr(placing, "reads_placed", lambda *_: is_read)
    source = write_family(tmp_path / "source", "gpt_oss", hidden_size=64, intermediate_size=32)
    folder, _ = expert_twins(tmp_path, source, MXFP4, in_mxfp4)
    shape = read_model_config(folder)
    read = _read(folder, shape)
    wanted = [dequantise(stack, torch.float32) for stack in _stacks(read)]
    places = [part.data_ptr() for part in tensors_of(read)]
    weights = place_experts(shape, read, torch.bfloat16)
    assert [part.data_ptr() for part in tensors_of(weights)] == places
    stacks = _stacks(weights)
    assert len(stacks) == 2 * len(shape.layers)
    assert {stack.is_placed for stack in stacks} == {is_read}
    before = [part.clone() for part in tensors_of(weights)]
    for part in tensors_of(weights):
        part.zero_()
    read_again(weights, None, partial(_read, folder, shape))
    for part, known in zip(tensors_of(weights), before, strict=True):
        assert torch.equal(part, known)
    for stack, numbers in zip(_stacks(weights), wanted, strict=True):
        assert torch.equal(dequantise(stack, torch.float32), numbers)
