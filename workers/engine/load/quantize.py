"""Which checkpoints with weights in 8 or 4 bits are supported.

Owns the meaning of a `quantization_config`. Must not know files, nor how a product is computed.
"""

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from kernels.fp8 import BLOCK
from protocol.errors import ConfigError
from workers.engine.load.int4_formats import gptq_format, int4_fault

_PACKED: Final = "pack-quantized"
_PACKED_BITS: Final = (4, 8)
_FLOATS: Final = ("float-quantized", "naive-quantized")
"""compressed-tensors' names of 8-bit floats as they are; older exports have the second."""

_SIDE_FILES: Final = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Files in which older versions of AutoGPTQ, AutoAWQ and ModelOpt describe the quantisation."""

_READ: Final = (
    "take 4 bits by AWQ, GPTQ or compressed-tensors (pack-quantized), e4m3 weights with scales by "
    f"{BLOCK} x {BLOCK} block or by tensor (quant_method fp8, compressed-tensors) or by channel "
    "(compressed-tensors) and dynamic activations, or the bf16 model with quantization = 'fp8' "
    "or 'int4'"
)
_KIND_KEYS: Final = ("quant_method", "quant_algo", "fmt", "format", "packing_format", "data_type")
_MLX_KEYS: Final = {"group_size", "bits", "mode"}


class StoredFormat(StrEnum):
    """How a checkpoint holds the matrices of its layers."""

    DENSE = "dense"
    FP8_ROWS = "fp8 by row"
    FP8_TENSORS = "fp8 by tensor"
    FP8_BLOCKS = "fp8 by block"
    FP8_BLOCKS_PACKED = "fp8 by block as compressed-tensors"
    INT4_AWQ = "int4 as AWQ"
    INT4_GPTQ = "int4 as GPTQ"
    INT4_GPTQ_V2 = "int4 as GPTQ v2"
    INT4_PACKED = "int4 as compressed-tensors"
    MXFP4 = "experts in MXFP4"

    @property
    def bits(self) -> int:
        """The bits of a number of the products' matrices, without its scales."""
        return 16 if self is StoredFormat.DENSE else 8 if self.is_fp8 else 4

    @property
    def is_fp8(self) -> bool:
        return self in {StoredFormat.FP8_ROWS, StoredFormat.FP8_TENSORS} or self.is_by_block

    @property
    def is_by_block(self) -> bool:
        """Whether a scale belongs to a block of rows and columns, in 8 bits."""
        return self in {StoredFormat.FP8_BLOCKS, StoredFormat.FP8_BLOCKS_PACKED}

    @property
    def is_int4(self) -> bool:
        return self not in {StoredFormat.DENSE, StoredFormat.MXFP4} and not self.is_fp8

    @property
    def scale_suffix(self) -> str:
        """What follows a module's name to name its scales."""
        return ".weight_scale_inv" if self is StoredFormat.FP8_BLOCKS else ".weight_scale"

    def scale_suffix_of(self, names: Collection[str]) -> str:
        """Like `scale_suffix`, for a checkpoint with tensors of these `names`. The suffix of scales
        by tensor depends on the exporter and is found in the names.
        """
        inverse = StoredFormat.FP8_BLOCKS.scale_suffix.replace(".weight", "")
        if self is StoredFormat.FP8_TENSORS and any(name.endswith(inverse) for name in names):
            return StoredFormat.FP8_BLOCKS.scale_suffix
        return self.scale_suffix


_STATED: Final = ("quantization_config", "compression_config", "quantization")
"""Where a config.json says how weights are kept: `compression_config` is the older name of
compressed-tensors, `quantization` MLX's.
"""


def stated_in(raw: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """The statement of a config.json about its quantisation; None if there is none."""
    return next((raw[key] for key in _STATED if raw.get(key)), None)


def read_stored(path: Path, raw: dict[str, Any]) -> StoredFormat:
    """The format by the `quantization_config` of config.json. Raises `ConfigError`."""
    stated = raw.get("quantization_config")
    if not stated:
        _check_unsaid(path)
        return StoredFormat.DENSE
    found = format_of(stated)
    if isinstance(found, StoredFormat) and (more := _more_than_format(stated)) is not None:
        found = f"its quantization_config asks for {more}, which is not supported: {_READ}"
    if isinstance(found, StoredFormat):
        return found
    raise ConfigError(f"{path}: {found}")


def _more_than_format(stated: dict[str, Any]) -> str | None:
    """A step beyond the format that changes numbers, if the file asks for one: without it a model
    answers nonsense. A transform of weights alone is contained in the stored weights.
    """
    for name, scheme in _table(_table(stated.get("transform_config")).get("config_groups")).items():
        applied = _table(scheme).get("apply")
        places = [str(_table(one).get("location")) for one in applied or []]
        if not places or not all(place.startswith("weight_") for place in places):
            return f"the transform {name} of activations ({', '.join(places) or 'no place named'})"
    sparse = _table(stated.get("sparsity_config")).get("format") or "dense"
    return None if sparse == "dense" else f"sparse weights ({sparse})"


def promised_by(stated: Any) -> tuple[str, ...]:  # noqa: ANN401 - JSON
    """What follows the name of each 4-bit module to name a tensor that a `quantization_config`
    promises: without it the numbers would be read in another order, or around another zero.
    """
    if not isinstance(stated, dict):
        return ()
    if stated.get("quant_method") == "gptq":
        is_sorted = stated.get("desc_act") is True and not stated.get("dynamic")
        return (".g_idx",) if is_sorted else ()
    groups = _table(stated.get("config_groups")).values()
    weights = [_table(_table(group).get("weights")) for group in groups]
    if len(weights) != 1:
        return ()
    zeros = (".weight_zero_point",) if weights[0].get("symmetric") is False else ()
    return zeros + ((".weight_g_idx",) if weights[0].get("actorder") == "group" else ())


def format_of(stated: Any) -> StoredFormat | str:  # noqa: ANN401 - JSON
    """The format that a `quantization_config` states, or what is in the way of reading it."""
    if isinstance(stated, dict):
        if stated.get("quant_method") == "mxfp4":
            return StoredFormat.MXFP4
        if _is_by_block(stated):
            return StoredFormat.FP8_BLOCKS
        if _is_by_tensor(stated):
            return StoredFormat.FP8_TENSORS
        if _is_compressed_fp8(stated, {"strategy": "channel"}):
            return StoredFormat.FP8_ROWS
        if _is_compressed_fp8(stated, {"strategy": "block", "block_structure": [BLOCK, BLOCK]}):
            return StoredFormat.FP8_BLOCKS_PACKED
        if (found := _int4(stated)) is not None:
            fault = int4_fault(stated)
            return found if fault is None else f"its quantization_config asks for {fault}"
    return f"quantised weights of this kind ({_kind(stated)}) are not supported: {_READ}"


def _check_unsaid(path: Path) -> None:
    """Refuse a model that says how its weights are quantised only in a file beside its
    config.json.
    """
    for name in _SIDE_FILES:
        if (path.parent / name).is_file():
            raise ConfigError(
                f"{path} has no quantization_config, but {name} beside it says that the weights "
                "are quantised: write its object, with a quant_method, into config.json as "
                "quantization_config, or take another quantised model"
            )


def _kind(stated: Any) -> str:  # noqa: ANN401 - JSON
    """The name of a format, in the words of its makers."""
    if not isinstance(stated, dict):
        return str(stated)
    if not stated.get("quant_method"):
        return "MLX" if stated.keys() <= _MLX_KEYS else "no quant_method is named"
    words = [stated.get(key) for key in _KIND_KEYS]
    if block := stated.get("weight_block_size"):
        words.append(f"a scale by block {block}")
    if stated.get("kv_cache_scheme"):
        words.append("keys and values in 8 bits with scales")
    groups = stated.get("config_groups")
    if isinstance(groups, dict):
        words += [_group_words(one) for one in groups.values() if isinstance(one, dict)]
    return ", ".join(dict.fromkeys(str(word) for word in words if word))


def _group_words(group: dict[str, Any]) -> str:
    weights, rows = _table(group.get("weights")), group.get("input_activations")
    words = f"weights of {weights.get('num_bits')} bits {weights.get('type')}"
    if weights.get("strategy"):
        words += f" with a scale by {weights['strategy']}"
    if (block := weights.get("block_structure")) is not None:
        words += f" {block}"
    if not rows:
        return words
    how = "" if rows.get("dynamic") else " with static scales"
    return f"{words} and activations of {rows.get('num_bits')}{how}"


def _table(value: object) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _int4(stated: dict[str, Any]) -> StoredFormat | None:
    """The 4-bit format that is meant, with any details."""
    match stated.get("quant_method"):
        case "awq":
            return StoredFormat.INT4_AWQ
        case "gptq":
            is_v2 = gptq_format(stated) == "gptq_v2"
            return StoredFormat.INT4_GPTQ_V2 if is_v2 else StoredFormat.INT4_GPTQ
        case "auto-round" | "intel/auto-round":
            return _auto_round(str(stated.get("packing_format") or stated.get("backend")))
        case "compressed-tensors":
            return StoredFormat.INT4_PACKED if _is_packed(stated) else None
        case _:
            return None


def _auto_round(packing: str) -> StoredFormat | None:
    """The format by AutoRound's name of the packing. Only that of AutoGPTQ stores zero points
    less one.
    """
    if "awq" in packing:
        return StoredFormat.INT4_AWQ
    if "gptqmodel" in packing or packing == "auto_round":
        return StoredFormat.INT4_GPTQ_V2
    return StoredFormat.INT4_GPTQ if "gptq" in packing else None


def _is_packed(stated: dict[str, Any]) -> bool:
    """Whether some groups of layers have packed integers of 4 bits, all others of 8, and rows of x
    stay as they are.
    """
    groups = stated.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(one, dict) for one in groups.values()):
        return False
    formats = {one.get("format") or stated.get("format") for one in groups.values()}
    weights = [_table(one.get("weights")) for one in groups.values()]
    return (
        formats == {_PACKED}
        and not any(one.get("input_activations") for one in groups.values())
        and all(one.get("type") == "int" and one.get("num_bits") in _PACKED_BITS for one in weights)
        and any(one.get("num_bits") == _PACKED_BITS[0] for one in weights)
    )


def _is_by_block(stated: dict[str, Any]) -> bool:
    return (
        stated.get("quant_method") == "fp8"
        and (stated.get("fmt") or "e4m3") == "e4m3"
        and stated.get("activation_scheme", "dynamic") == "dynamic"
        and stated.get("weight_block_size") == [BLOCK, BLOCK]
    )


def _is_by_tensor(stated: dict[str, Any]) -> bool:
    """Whether each matrix has one scale. Scales of activations may be static: none are read."""
    if stated.get("quant_method") != "fp8":
        return _is_compressed_fp8(stated, {"strategy": "tensor"}, static=True)
    return (
        (stated.get("fmt") or "e4m3") == "e4m3"
        and stated.get("activation_scheme", "dynamic") in {"dynamic", "static"}
        and not stated.get("weight_block_size")
    )


def _is_compressed_fp8(
    stated: dict[str, Any], scales: dict[str, Any], *, static: bool = False
) -> bool:
    """Whether all groups of layers are in 8-bit floats of these scales; those of activations are
    made at run time, unless they may be `static`.
    """
    groups = stated.get("config_groups")
    return (
        stated.get("quant_method") == "compressed-tensors"
        and isinstance(groups, dict)
        and len(groups) > 0
        and all(
            isinstance(group, dict)
            and (group.get("format") or stated.get("format") or _FLOATS[0]) in _FLOATS
            and _is_scaled_by(group, scales, static=static)
            for group in groups.values()
        )
    )


def _is_scaled_by(group: dict[str, Any], scales: dict[str, Any], *, static: bool) -> bool:
    weights, rows = _table(group.get("weights")), group.get("input_activations")
    wanted = {"num_bits": 8, "type": "float", **scales}
    return (
        all(weights.get(key) == value for key, value in wanted.items())
        and weights.get("symmetric", True)
        and not weights.get("dynamic", False)
        and (rows is None or bool(rows.get("dynamic")) or (static and rows.get("num_bits") == 8))
    )
