"""Mixtures are read as newer and as older exports write them; what is not understood is said."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from protocol.errors import ConfigError
from tests.fakes.tiny_families import write_family
from workers.engine.models.model_config import read_model_config
from workers.engine.models.weight_reader import load_weights
from workers.engine.models.weights import ModelWeights

CPU = torch.device("cpu")


def _loaded(model_dir: Path) -> ModelWeights:
    config = read_model_config(model_dir)
    return load_weights(model_dir, config, CPU, torch.float32, lambda *_: None)


def _rewritten(source: Path, target: Path, *, fused: bool) -> Path:
    """The model with each layer's experts in two tensors, or in three of each expert."""
    target.mkdir()
    config = json.loads((source / "config.json").read_bytes())
    (target / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    count, width = config["num_local_experts"], config["moe_intermediate_size"]
    for name in [name for name in tensors if name.endswith("mlp.gate.weight")]:
        at = name.removesuffix("gate.weight") + "experts."
        gate_up, down = f"{at}gate_up_proj", f"{at}down_proj"
        if gate_up in tensors and not fused:
            for index, (both, own) in enumerate(
                zip(tensors.pop(gate_up), tensors.pop(down), strict=True)
            ):
                tensors[f"{at}{index}.gate_proj.weight"] = both[:width].clone()
                tensors[f"{at}{index}.up_proj.weight"] = both[width:].clone()
                tensors[f"{at}{index}.down_proj.weight"] = own.clone()
        elif gate_up not in tensors and fused:
            parts = [
                [tensors.pop(f"{at}{index}.{side}_proj.weight") for side in ("gate", "up", "down")]
                for index in range(count)
            ]
            tensors[gate_up] = torch.stack([torch.cat((gate, up)) for gate, up, _ in parts])
            tensors[down] = torch.stack([own for _, _, own in parts])
    save_file(tensors, target / "model.safetensors")
    return target


def test_both_ways_of_writing_experts_are_the_same(tmp_path: Path) -> None:
    """Three tensors of each expert, as published, or two of all, as newer exports have it."""
    source = write_family(tmp_path / "model", "qwen3_moe")
    first = _loaded(_rewritten(source, tmp_path / "single", fused=False))
    second = _loaded(_rewritten(source, tmp_path / "fused", fused=True))
    for one, other in zip(first.layers, second.layers, strict=True):
        for name in ("gate_up", "down"):
            assert torch.equal(getattr(one, name), getattr(other, name))
    assert first.num_bytes() == second.num_bytes()


def _refusal(folder: Path, family: str, **changes: Any) -> str:
    """The line for a model whose config.json says something else."""
    model_dir = write_family(folder, family)
    path = model_dir / "config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))
    with pytest.raises(ConfigError) as caught:
        _loaded(model_dir)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' in a mixture of experts is not supported"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9 of 8 experts"),
        ({"mlp_only_layers": "none"}, "mlp_only_layers is 'none', not a list of layers"),
        ({"moe_intermediate_size": 39}, "has shape [40, 48], but config.json asks for [39, 48]"),
        ({"num_local_experts": 9}, "has no tensor model.layers.0.mlp.experts.8.gate_proj.weight"),
        ({"num_local_experts": 7}, "gate.weight has shape [8, 48], but config.json asks for [7,"),
    ],
)
def test_what_is_not_understood_is_named(
    tmp_path: Path, changes: dict[str, Any], line: str
) -> None:
    """Each in one line."""
    assert line in _refusal(tmp_path, "qwen3_moe", **changes)
