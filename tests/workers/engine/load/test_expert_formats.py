"""A mixture whose experts are in fewer bits answers as one that holds the same numbers in 16."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernels.experts import Routing
from kernels.fp8 import FP8
from kernels.mxfp4 import Mxfp4Weight
from protocol.errors import ConfigError
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from workers.engine import model_source
from workers.engine.models.model_config import read_model_config
from workers.engine.models.weight_reader import load_weights

CPU = torch.device("cpu")
Change = Callable[[str, Tensor], dict[str, Tensor]]
BY_ROW = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
        }
    },
}
BY_TENSOR = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"},
            "input_activations": {"num_bits": 8, "type": "float", "dynamic": False},
        }
    },
}
FUSED_BY_TENSOR = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
BY_BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
MXFP4: dict[str, object] = {"quant_method": "mxfp4"}
PACKED: dict[str, object] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
        }
    },
}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def expert_twins(
    folder: Path, source: Path, stated: dict[str, object], change: Change
) -> tuple[Path, Path]:
    """The model with experts changed to several tensors, of which the one that keeps its name is
    what they stand for; and the model of these numbers.
    """
    tensors, raw = (
        load_file(source / "model.safetensors"),
        json.loads((source / "config.json").read_bytes()),
    )
    small, large = folder / "small", folder / "large"
    narrow: dict[str, Tensor] = {}
    wide: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        found = change(name, tensor)
        wide[name] = found.pop("numbers", tensor)
        narrow |= found or {name: tensor}
    for target, content in ((small, narrow), (large, wide)):
        target.mkdir()
        kept = raw | ({"quantization_config": stated} if target is small else {})
        (target / "config.json").write_text(json.dumps(kept))
        save_file(
            {name: part.contiguous() for name, part in content.items()},
            target / "model.safetensors",
        )
    return small, large


def _is_expert(name: str) -> bool:
    return ".experts." in name and name.endswith(".weight")


def _fuse(path: Path) -> None:
    """Write the experts of each layer as two tensors, as newer exports do."""
    tensors = load_file(path)
    first = ".experts.0.gate_proj.weight"
    for at in [name.removesuffix(first) for name in tensors if name.endswith(first)]:
        experts = f"{at}.experts."
        count = sum(name.startswith(experts) for name in tensors) // 3
        gates, ups, downs = (
            torch.stack([tensors.pop(f"{experts}{one}.{side}.weight") for one in range(count)])
            for side in ("gate_proj", "up_proj", "down_proj")
        )
        tensors[f"{experts}gate_up_proj"] = torch.cat((gates, ups), 1)
        tensors[f"{experts}down_proj"] = downs
    save_file(tensors, path)


def _by_row(name: str, tensor: Tensor) -> dict[str, Tensor]:
    if not _is_expert(name):
        return {}
    scales = tensor.abs().amax(1, keepdim=True) / 448
    values = (tensor / scales).to(FP8)
    return {name: values, f"{name}_scale": scales, "numbers": values.float() * scales}


def _by_block(name: str, tensor: Tensor) -> dict[str, Tensor]:
    if not _is_expert(name):
        return {}
    blocks = -(-tensor.shape[0] // 128), -(-tensor.shape[1] // 128)
    scales = torch.rand(blocks) * 0.01 + 0.01
    spread = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    spread = spread[: tensor.shape[0], : tensor.shape[1]]
    values = (tensor / spread).to(FP8)
    return {name: values, f"{name}_scale_inv": scales, "numbers": values.float() * spread}


def _by_tensor(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """One scale a matrix, another for each; and one of its rows, which is not read."""
    if not _is_expert(name):
        return {}
    scale = tensor.abs().max().view(1) / 448
    values = (tensor / scale).to(FP8)
    static = name.removesuffix("weight") + "input_scale"
    found = {name: values, f"{name}_scale": scale, static: torch.tensor([0.5])}
    return found | {"numbers": values.float() * scale}


def _fused_by_tensor(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """All experts in one tensor, with a scale each."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {}
    scales = tensor.abs().amax((1, 2), keepdim=True) / 448
    values = (tensor / scales).to(FP8)
    found = {name: values, f"{name}_scale_inv": scales, f"{name}_activation_scale": scales * 2}
    return found | {"numbers": values.float() * scales}


def in_packed(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Four bits, eight columns in a word, the first in its lowest bits; a scale for 32 columns."""
    if not _is_expert(name):
        return {}
    rows, depth = tensor.shape
    values = torch.randint(0, 16, (rows, depth))
    scales = torch.rand(rows, depth // 32) * 0.02 + 0.02
    shifts = torch.arange(0, 32, 4)
    words = (values.view(rows, -1, 8) << shifts).sum(-1)
    module = name.removesuffix(".weight")
    return {
        f"{module}.weight_packed": words.to(torch.uint32).view(torch.int32),
        f"{module}.weight_scale": scales,
        f"{module}.weight_shape": torch.tensor([rows, depth]),
        "numbers": (values - 8.0) * scales.repeat_interleave(32, 1),
    }


def in_mxfp4(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """As gpt-oss ships it: rows of outputs, where the plain tensors have columns."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {}
    count, depth, rows = tensor.shape
    bits = torch.randint(0, 16, (count, rows, depth // 32, 32))
    powers = torch.randint(121, 125, (count, rows, depth // 32))
    numbers = torch.tensor(E2M1)[bits] * torch.exp2(powers.unsqueeze(-1) - 127.0)
    return {
        f"{name}_blocks": (bits[..., ::2] + 16 * bits[..., 1::2]).to(torch.uint8),
        f"{name}_scales": powers.to(torch.uint8),
        "numbers": numbers.flatten(2).mT.float(),
    }


@pytest.mark.parametrize(
    ("family", "stated", "change", "sizes"),
    [
        ("qwen3_moe", BY_ROW, _by_row, {}),
        ("qwen3_moe", BY_TENSOR, _by_tensor, {}),
        ("qwen3_5_moe", FUSED_BY_TENSOR, _fused_by_tensor, {}),
        ("qwen3_moe", BY_BLOCK, _by_block, {"hidden_size": 128, "moe_intermediate_size": 128}),
        (
            "gpt_oss",
            {"quant_method": "mxfp4"},
            in_mxfp4,
            {"hidden_size": 64, "intermediate_size": 32},
        ),
    ],
)
@torch.inference_mode()
def test_experts_are_the_numbers_that_they_stand_for(
    tmp_path: Path, family: str, stated: dict[str, object],
    change: Change, sizes: dict[str, int],
) -> None:  # fmt: skip
    """Each matrix of each expert, and what the model says of its size."""
    torch.manual_seed(3)
    source = write_family(tmp_path / "source", family, **sizes)
    if change is _fused_by_tensor:
        _fuse(source / "model.safetensors")
    small, large = expert_twins(tmp_path, source, stated, change)
    found, wanted = (load_tiny(each).model for each in (small, large))
    ids = torch.arange(8)
    assert found.weights.num_bytes() < wanted.weights.num_bytes()
    for index, (own, other) in enumerate(
        zip(found.weights.layers, wanted.weights.layers, strict=True)
    ):
        x = found.embed(ids)
        ours, theirs = (
            model._fed(x, layer, model.config.layers[index].mlp, None)
            for model, layer in ((found, own), (wanted, other))
        )
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_blocks_of_gpt_oss_that_lack_their_scales_are_named(tmp_path: Path) -> None:
    """Blocks of gpt-oss that lack their scales are named in one line."""
    source = write_family(tmp_path / "source", "gpt_oss", hidden_size=64, intermediate_size=32)
    small, _ = expert_twins(tmp_path, source, MXFP4, in_mxfp4)
    tensors = load_file(small / "model.safetensors")
    del tensors["model.layers.0.mlp.experts.down_proj_scales"]
    save_file(tensors, small / "model.safetensors")
    with pytest.raises(ConfigError, match=r"no tensor \S+experts\.down_proj_scales"):
        load_weights(small, read_model_config(small), CPU, torch.float32, lambda *_: None)


def test_a_start_checks_the_first_layer_of_experts_in_mxfp4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start checks the first layer of experts in MXFP4 with the model's sizes, in a process of
    its own, with one line; layers of other forms are not checked.
    """
    asked: list[tuple[object, ...]] = []

    def check(*given: object, has_bias: bool) -> str:
        asked.append((*given, has_bias))
        return "experts in MXFP4: as found"

    monkeypatch.setattr(model_source, "check_on_card", check)
    source = write_family(tmp_path / "source", "gpt_oss", hidden_size=64, intermediate_size=32)
    for folder in expert_twins(tmp_path, source, MXFP4, in_mxfp4):
        shape = read_model_config(folder)
        weights = load_weights(folder, shape, CPU, torch.float32, lambda *_: None)
        model_source.check_experts(shape, weights, CPU, lambda *_: None)
    ((device, gates, downs, routing, _, command, has_bias),) = asked
    assert (device, has_bias) == (CPU, True)
    assert isinstance(gates, Mxfp4Weight)
    assert isinstance(downs, Mxfp4Weight)
    assert (gates.shape[1], downs.shape[1]) == (64, 32)
    assert isinstance(routing, Routing)
    assert isinstance(command, list)
    assert command[-2:] == ["-m", "kernels.experts.card_check"]
    assert capsys.readouterr().err.splitlines().count("experts in MXFP4: as found") == 1


def test_static_scales_of_activations_are_ignored_with_a_line(tmp_path: Path) -> None:
    """Rows are scaled by their own numbers, whatever was measured before."""
    small, _ = expert_twins(
        tmp_path, write_family(tmp_path / "s", "qwen3_moe"), BY_TENSOR, _by_tensor
    )
    said: list[str] = []
    load_weights(
        small, read_model_config(small), CPU, torch.float32, lambda *parts: said.append(parts[2])
    )
    count = sum(name.endswith("input_scale") for name in load_file(small / "model.safetensors"))
    assert count > 0
    assert [line for line in said if "activations" in line] == [
        f"{count} static scales of activations are ignored: each row is scaled by its own numbers"
    ]


def test_a_scale_by_tensor_that_is_none_is_named(tmp_path: Path) -> None:
    """Scales by row in a model that promises one for each matrix."""
    small, _ = expert_twins(tmp_path, write_family(tmp_path / "s", "qwen3_moe"), BY_TENSOR, _by_row)
    with pytest.raises(ConfigError, match=r"weight_scale has shape .* one scale for each matrix"):
        load_weights(small, read_model_config(small), CPU, torch.float32, lambda *_: None)
