"""Weights in 8 bits: which of the field's checkpoints we read, and how others become so.

Owns the meaning of a `quantization_config` and what of a layer is quantised: its four products, not
its norms; never the embedding nor the head. Must not know files nor how a product is computed.

Three mantissa bits make a weight 2^-4 of itself wrong at the most; `kernels.fp8` has the rule.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from kernels.fp8 import BLOCK, quantize_weight
from kernels.linear import Weight
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from workers.engine.models.weights import LayerWeights


class Stored(StrEnum):
    """How a checkpoint holds the matrices of its layers."""

    DENSE = "dense"
    FP8_ROWS = "fp8 by row"
    FP8_BLOCKS = "fp8 by block"

    @property
    def scale_suffix(self) -> str:
        """What follows a module's name to name its scales."""
        return ".weight_scale" if self is Stored.FP8_ROWS else ".weight_scale_inv"


def read_stored(path: Path, raw: dict[str, Any]) -> Stored:
    """What the `quantization_config` of the config.json at `path` says. Raises `ConfigError`."""
    stated = raw.get("quantization_config")
    if not stated:
        return Stored.DENSE
    if isinstance(stated, dict):
        if _is_by_block(stated):
            return Stored.FP8_BLOCKS
        if _is_by_row(stated):
            return Stored.FP8_ROWS
    raise ConfigError(
        f"{path}: quantised weights of this kind are not supported: take e4m3 weights with scales "
        f"by {BLOCK} x {BLOCK} block (quant_method fp8) or by channel (compressed-tensors) and "
        "dynamic activations, or the bf16 model with quantization = 'fp8'"
    )


def quantised(layer: "LayerWeights") -> "LayerWeights":
    """The layer with its products in 8 bits, scaled by row, one after the other."""
    return with_products(layer, _quantised)


def with_products(layer: "LayerWeights", change: Callable[[Weight], Weight]) -> "LayerWeights":
    """The layer with each of its products changed."""
    return replace(
        layer,
        qkv=change(layer.qkv),
        out=change(layer.out),
        gate_up=change(layer.gate_up),
        down=change(layer.down),
    )


def _quantised(weight: Weight) -> Weight:
    return quantize_weight(weight) if isinstance(weight, Tensor) else weight


def _is_by_block(stated: dict[str, Any]) -> bool:
    return (
        stated.get("quant_method") == "fp8"
        and stated.get("fmt", "e4m3") == "e4m3"
        and stated.get("activation_scheme", "dynamic") == "dynamic"
        and stated.get("weight_block_size") == [BLOCK, BLOCK]
    )


def _is_by_row(stated: dict[str, Any]) -> bool:
    groups = stated.get("config_groups")
    return (
        stated.get("quant_method") == "compressed-tensors"
        and stated.get("format", "float-quantized") == "float-quantized"
        and not stated.get("kv_cache_scheme")
        and isinstance(groups, dict)
        and len(groups) > 0
        and all(isinstance(group, dict) and _is_channelwise(group) for group in groups.values())
    )


def _is_channelwise(group: dict[str, Any]) -> bool:
    weights, rows = group.get("weights") or {}, group.get("input_activations")
    wanted = {"num_bits": 8, "type": "float", "strategy": "channel"}
    return (
        all(weights.get(key) == value for key, value in wanted.items())
        and weights.get("symmetric", True)
        and not weights.get("dynamic", False)
        and (rows is None or bool(rows.get("dynamic")))
    )
