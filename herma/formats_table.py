"""`herma plan --formats`: in which formats models of which families load, and why others do not.
Owns the text. Which formats load is read from the engine's own tables, and the reason for a format
that does not load is the error that a start would report.
"""

from collections.abc import Iterator
from typing import Any, Final

from workers.engine.load.quantize import StoredFormat, format_of
from workers.engine.models.families import TYPE_FORMATS
from workers.engine.models.model_config import LACKING

_PACKED: Final = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
_FLOATS: Final = {"quant_method": "compressed-tensors", "format": "float-quantized"}
_BYTES: Final = {"num_bits": 8, "type": "float"}


def _group(weights: dict[str, Any], rows: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"weights": weights, "input_activations": rows}}}


ASKED: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("bitsandbytes", {"quant_method": "bitsandbytes"}),
    ("MLX", {"group_size": 64, "bits": 4}),
    ("NVFP4", {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    ("ModelOpt FP8", {"quant_method": "modelopt", "quant_algo": "FP8"}),
    ("e5m2", {"quant_method": "fp8", "fmt": "e5m2"}),
    ("other blocks", {"quant_method": "fp8", "weight_block_size": [64, 64]}),
    (
        "static rows",
        _FLOATS | _group(_BYTES | {"strategy": "channel"}, {"num_bits": 8, "dynamic": False}),
    ),
    ("int8", _PACKED | _group({"num_bits": 8, "type": "int", "strategy": "channel"})),
    ("GPTQ of 8 bits", {"quant_method": "gptq", "bits": 8}),
    ("AWQ gemv", {"quant_method": "awq", "bits": 4, "version": "gemv"}),
)
"""Published formats that are asked about, by their usual names, and what states them."""


def formats_table() -> Iterator[str]:
    """The lines, unwrapped."""
    yield "bits  format"
    for stored in StoredFormat:
        types = [name for name, formats in TYPE_FORMATS.items() if stored in formats]
        yield f"{stored.bits:<4}  {stored}: {_types(types)}"
    yield ""
    yield 'Weights in 16 bits become 8 or 4 at load: quantization = "fp8" or "int4".'
    yield ""
    yield "refused   what is in the way"
    for name, stated in ASKED:
        if isinstance(found := format_of(stated), str):
            yield f"format    {name}: {found.partition(': ')[0]}"
    for model_type, lacking in LACKING.items():
        yield f"family    {model_type}: {lacking}"


def _types(types: list[str]) -> str:
    """The families in words. If they are more than half of all, the text names the missing ones."""
    others = [name for name in TYPE_FORMATS if name not in types]
    if not others:
        return f"all families ({', '.join(types)})"
    return f"all but {', '.join(others)}" if len(others) < len(types) else ", ".join(types)
