"""Checkpoints of which a part is in 4 bits, another in 8 or 16, as people publish hybrids.

Every mixture must answer as one in float32 of the very same weights. Nothing is refused because
matrices that we merge were quantised one by one.
"""

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.int4 import Int4Weight
from protocol.errors import ConfigError
from tests.fakes.int4_files import FORMATS, GPTQ, SHAPE, WEIGHTS, drawn, greedy, stored, twins
from tests.fakes.pairs import each_once
from tests.fakes.tiny_drafters import add_gated_head
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny, write_tiny_model

HYBRID: dict[str, Any] = {
    **SHAPE,
    "vocab_size": 152,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
LINEAR = re.compile(r".*(_proj|in_proj_\w+|lm_head|mtp\.fc)\.weight")
SIZES: dict[str, Any] = {"kv_tokens": 2048, "block_size": 32, "dtype": "float32"}
Bits = Callable[[str], int]
"""How many bits a module has; 16 are left as they are."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3.5 with an MTP head, in float32."""
    path = write_family(tmp_path_factory.mktemp("plain"), "qwen3_5", **HYBRID)
    add_gated_head(path)
    return path


def pair(home: Path, plain: Path, name: str, bits_of: Bits) -> tuple[Path, Path]:
    """`plain` with modules in other bits, and in float32 with the weights that these are."""
    small, large = home / "small", home / "large"
    quantised, dense = {}, {}
    for key, tensor in load_file(plain / "model.safetensors").items():
        module = key.removesuffix(".weight")
        bits = bits_of(module) if LINEAR.fullmatch(key) else 16
        quantised[key] = dense[key] = tensor
        if bits == 16:
            continue
        rows, depth = tensor.shape
        matrix = drawn((rows, depth), name, zlib.crc32(key.encode()), bits=bits)
        del quantised[key]
        dense[key] = matrix.dense
        quantised |= dict(stored(matrix, module, name, bits=bits))
    config = json.loads((plain / "config.json").read_text())
    for path, tensors, stated in ((small, quantised, FORMATS[name]), (large, dense, None)):
        path.mkdir()
        save_file(tensors, path / "model.safetensors")
        text = json.dumps(config | ({} if stated is None else {"quantization_config": stated}))
        (path / "config.json").write_text(text)
    return small, large


def _all(module: str) -> int:
    return 16 if module.startswith("mtp.") or module == "lm_head" else 4


def _with_head(module: str) -> int:
    return 16 if module.startswith("mtp.") else 4


def _no_recurrence(module: str) -> int:
    return 16 if "linear_attn" in module else _all(module)


def _half_merged(module: str) -> int:
    """As vLLM refuses: a gate without its ups, keys without their queries, rows without z."""
    return 16 if module.endswith(("gate_proj", "q_proj", "in_proj_z")) else _all(module)


def _down_in_8(module: str) -> int:
    return 8 if module.endswith(("down_proj", "in_proj_z")) else _all(module)


MIXTURES: dict[str, Bits] = {
    "recurrent layers in 16 bits": _no_recurrence,
    "gates of states too": _all,
    "the output head too": _with_head,
    "parts of what is merged": _half_merged,
    "some in 8 bits": _down_in_8,
}


@pytest.mark.parametrize(
    ("name", "mixture"),
    each_once(["awq", "gptq symmetric", "gptq", "packed symmetric", "packed"], [*MIXTURES]),
)
def test_mixtures_answer_as_their_numbers(
    tmp_path: Path, plain: Path, name: str, mixture: str
) -> None:
    """AWQ has no 8 bits."""
    if name == "awq" and mixture == "some in 8 bits":
        return
    small, large = pair(tmp_path, plain, name, MIXTURES[mixture])
    runner = load_tiny(small, **SIZES)
    assert runner.facts.dtype == "float32+int4"
    assert greedy(runner) == greedy(load_tiny(large, **SIZES))


def test_what_stays_alike_stays_in_four_bits(tmp_path: Path, plain: Path) -> None:
    """What stays alike stays in four bits: only the matrix whose parts differ is widened, and the
    start says how many are.
    """
    small, _ = pair(tmp_path, plain, "gptq", _half_merged)
    reports: list[str] = []
    from config import WorkerConfig
    from workers.engine.start import load_runner

    config = WorkerConfig("w", str(small), "m", (), max_seqs=8, token_budget=256, device="cpu")
    runner = load_runner(config, lambda _phase, _share, detail: reports.append(detail))
    for layer in runner.model.weights.layers:
        assert isinstance(layer.down, Int4Weight)
        assert isinstance(layer.out, Int4Weight)
        assert isinstance(layer.gate_up, torch.Tensor)
    wanted = "12 matrices are in 16 bits, because the checkpoint holds their parts differently"
    assert wanted in reports


def _mtp_in_4(module: str) -> int:
    return 16 if module == "lm_head" else 4


@pytest.mark.parametrize("bits_of", [_all, _mtp_in_4])
def test_a_quantised_mtp_head_drafts(tmp_path: Path, plain: Path, bits_of: Bits) -> None:
    """A quantised MTP head drafts, in 16 bits beside a model in 4, and in 4 bits with the product
    in front of its layer.
    """
    small, _ = pair(tmp_path, plain, "gptq symmetric", bits_of)
    runner = load_tiny(small, speculation="auto", **SIZES)
    assert runner.drafter is not None
    assert runner.drafter.name == "mtp"


def test_columns_in_other_orders_are_widened(tmp_path: Path) -> None:
    """Queries and keys are one matrix, whose rows read x in one order."""
    small, large = twins(tmp_path, "gptq sorted")
    tensors, dense = load_file(small / "model.safetensors"), load_file(large / "model.safetensors")
    module = "model.layers.0.self_attn.k_proj"
    matrix = drawn((128, 128), "gptq sorted", 3)
    other = matrix._replace(group_of=matrix.group_of.flip(0))
    save_file(tensors | dict(stored(other, module, "gptq")), small / "model.safetensors")
    save_file(dense | {f"{module}.weight": other.dense}, large / "model.safetensors")
    runner = load_tiny(small)
    assert isinstance(runner.model.weights.layers[0].qkv, torch.Tensor)
    assert greedy(runner) == greedy(load_tiny(large))


def test_other_widths_are_one_line(tmp_path: Path) -> None:
    """Another number of bits in a module that the configuration does not name is refused in one
    line.
    """
    small, _ = twins(tmp_path, "gptq")
    tensors = load_file(small / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.qweight"
    tensors[name] = tensors[name][: len(tensors[name]) * 3 // 4]
    save_file(tensors, small / "model.safetensors")
    with pytest.raises(ConfigError, match=r"down_proj has 24 words .* neither 4 nor 8 bits"):
        load_tiny(small)


def test_groups_of_8_and_4_bits_are_read(tmp_path: Path) -> None:
    """Groups of 8 and 4 bits are read as compressed-tensors states a mixture; without any of 4 bits
    it is refused.
    """
    groups = {"a": {"weights": WEIGHTS}, "b": {"weights": WEIGHTS | {"num_bits": 8}}}
    stated = FORMATS["packed"] | {"config_groups": groups}
    small, _ = twins(tmp_path, "packed")
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"quantization_config": stated}))
    assert load_tiny(small).facts.dtype == "float32+int4"


def test_what_only_a_file_beside_says_is_one_line(tmp_path: Path) -> None:
    """A format that only a file beside states, as AutoGPTQ and ModelOpt once wrote, is one line;
    and so is one that no file states, by the tensors.
    """
    small, _ = twins(tmp_path, "gptq")
    config = json.loads((small / "config.json").read_text())
    del config["quantization_config"]
    (small / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"qweight instead of .* its config.json says"):
        load_tiny(small)
    (small / "quantize_config.json").write_text(json.dumps(GPTQ))
    with pytest.raises(ConfigError, match=r"but quantize_config.json beside it"):
        load_tiny(small)


def test_eight_bits_by_row_of_gates_are_widened(tmp_path: Path) -> None:
    """An output head in 8 bits is read as one of 16."""
    model_dir = write_tiny_model(tmp_path, **SHAPE)
    tensors = load_file(model_dir / "model.safetensors")
    head = tensors.pop("lm_head.weight")
    scales = head.abs().amax(1, keepdim=True) / 448
    values = (head / scales).to(torch.float8_e4m3fn)
    dense = {**tensors, "lm_head.weight": values.float() * scales}
    large = write_tiny_model(tmp_path / "large", **SHAPE)
    save_file(dense, large / "model.safetensors")
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    rows = {"num_bits": 8, "type": "float", "dynamic": True}
    stated = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"g": {"weights": weights, "input_activations": rows}},
    }
    small = write_tiny_model(tmp_path / "small", **SHAPE, quantization_config=stated)
    both = {"lm_head.weight": values, "lm_head.weight_scale": scales}
    save_file(tensors | both, small / "model.safetensors")
    assert greedy(load_tiny(small)) == greedy(load_tiny(large))
