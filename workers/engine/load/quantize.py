"""Which checkpoints with weights in 8 bits are supported.

Owns the meaning of a `quantization_config`. Must not know files, nor how a product is computed.
"""

from enum import StrEnum
from pathlib import Path
from typing import Any

from kernels.fp8 import BLOCK
from protocol.errors import ConfigError


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
    """The format by the `quantization_config` of config.json. Raises `ConfigError`."""
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
