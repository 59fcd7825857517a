"""Which checkpoints with weights in 8 or 4 bits are supported.

Owns the meaning of a `quantization_config`. Must not know files, nor how a product is computed.
"""

from enum import StrEnum
from pathlib import Path
from typing import Any

from kernels.fp8 import BLOCK
from protocol.errors import ConfigError
from workers.engine.load.int4_formats import int4_fault


class Stored(StrEnum):
    """How a checkpoint holds the matrices of its layers."""

    DENSE = "dense"
    FP8_ROWS = "fp8 by row"
    FP8_BLOCKS = "fp8 by block"
    INT4_AWQ = "int4 as AWQ"
    INT4_GPTQ = "int4 as GPTQ"
    INT4_GPTQ_V2 = "int4 as GPTQ v2"
    INT4_PACKED = "int4 as compressed-tensors"

    @property
    def is_fp8(self) -> bool:
        return self in {Stored.FP8_ROWS, Stored.FP8_BLOCKS}

    @property
    def is_int4(self) -> bool:
        return self is not Stored.DENSE and not self.is_fp8

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
        if (found := _int4(stated)) is not None:
            if (fault := int4_fault(stated)) is not None:
                raise ConfigError(f"{path}: its quantization_config asks for {fault}")
            return found
    method = stated.get("quant_method") if isinstance(stated, dict) else stated
    raise ConfigError(
        f"{path}: quantised weights of this kind ({method}) are not supported: take 4 bits by AWQ, "
        "GPTQ or compressed-tensors (pack-quantized), e4m3 weights with scales by "
        f"{BLOCK} x {BLOCK} block (quant_method fp8) or by channel (compressed-tensors) and "
        "dynamic activations, or the bf16 model with quantization = 'fp8' or 'int4'"
    )


def _int4(stated: dict[str, Any]) -> Stored | None:
    """The 4-bit format that is meant, whatever its details."""
    match stated.get("quant_method"):
        case "awq":
            return Stored.INT4_AWQ
        case "gptq":
            is_v2 = stated.get("checkpoint_format") == "gptq_v2"
            return Stored.INT4_GPTQ_V2 if is_v2 else Stored.INT4_GPTQ
        case "auto-round" | "intel/auto-round":
            packing = str(stated.get("packing_format", ""))
            if "awq" in packing:
                return Stored.INT4_AWQ
            return Stored.INT4_GPTQ if "gptq" in packing else None
        case "compressed-tensors":
            groups = stated.get("config_groups")
            is_packed = stated.get("format") == "pack-quantized" and isinstance(groups, dict)
            return Stored.INT4_PACKED if is_packed and _all_int4(groups) else None
        case _:
            return None


def _all_int4(groups: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether every group of layers has integers of 4 bits, and rows as they are."""
    weights = [group.get("weights") or {} for group in groups.values() if isinstance(group, dict)]
    plain = all(
        isinstance(group, dict) and not group.get("input_activations") for group in groups.values()
    )
    return (
        plain
        and len(weights) == len(groups) > 0
        and all(one.get("num_bits") == 4 and one.get("type") == "int" for one in weights)
        and all(
            not one.get("actorder") or one["actorder"] in {"static", "weight"} for one in weights
        )
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
