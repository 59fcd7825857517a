"""Weights that are drawn for a shape are in the format of the checkpoint for which they stand."""

from pathlib import Path

import pytest
import torch

from config import WorkerConfig
from kernels.fp8 import Fp8Weight
from workers.engine.models.dummy import draw_weights
from workers.engine.models.model_config import read_model_config
from workers.engine.settings import layer_change
from workers.model_dir import dummy_dir

META = torch.device("meta")


@pytest.mark.parametrize("name", ["qwen3-8b-fp8", "qwen3-30b-a3b-fp8"])
def test_a_shape_in_8_bits_by_block_is_drawn_by_block(name: str) -> None:
    """Its speed is that of the published checkpoint, not that of scales by row."""
    model = f"dummy:{name}"
    shape = read_model_config(Path(dummy_dir(model))).with_layers([0])
    config = WorkerConfig("a", model, "a", (), max_seqs=5, token_budget=300, device="cuda")
    change = layer_change(config, shape, torch.bfloat16, META)
    (layer,) = draw_weights(shape, META, torch.bfloat16, change=change).layers
    for weight in (layer.qkv, layer.out, layer.gate_up, layer.down):
        assert isinstance(weight, Fp8Weight)
        assert weight.is_blocked
