"""What the configurations of mixtures of experts have in common.

Owns the reading of the keys that they share. Must not know which family reads them.
"""

from typing import Any

from kernels.experts import Routing
from workers.engine.models.config_file import ConfigFile
from workers.engine.models.description import Experts


def mixture(file: ConfigFile, *, renormalises: bool, **features: Any) -> Experts:  # noqa: ANN401
    """A mixture of the file's sizes, with `features` of `Experts`."""
    if (stated := file.raw.get("hidden_act") or "silu") not in ("silu", "swish"):
        raise file.lacks(f"hidden_act = {stated!r} in a mixture of experts")
    routing = Routing(
        num_experts=_num_experts(file),
        num_active=file.count("num_experts_per_tok"),
        renormalises=renormalises,
    )
    if routing.num_active > routing.num_experts:
        raise file.error(
            f"num_experts_per_tok is {routing.num_active} of {routing.num_experts} experts: fetch "
            "it again"
        )
    if "width" not in features:
        features["width"] = file.count("moe_intermediate_size")
    return Experts(routing=routing, **features)


def mixture_layers(file: ConfigFile) -> tuple[bool, ...]:
    """For each layer, whether it has a mixture: every `decoder_sparse_step`-th layer has one,
    except the layers in `mlp_only_layers`. The others are dense.
    """
    count, step = file.count("num_hidden_layers"), file.count("decoder_sparse_step", 1)
    dense = file.raw.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(index, int) for index in dense):
        raise file.error(f"mlp_only_layers is {dense!r}, not a list of layers: fetch it again")
    return tuple([index not in dense and (index + 1) % step == 0 for index in range(count)])


def _num_experts(file: ConfigFile) -> int:
    """The number of experts, by either spelling of its key."""
    return file.count("num_experts" if "num_experts" in file.raw else "num_local_experts")
