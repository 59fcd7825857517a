"""Which tensors of a checkpoint may stay unread.

Owns the decision, and the lines about those that are left out. Must not know how a tensor is read
into a network.
"""

from collections.abc import Collection
from pathlib import Path

from protocol.errors import ConfigError
from workers.engine.load.checkpoint import Checkpoint
from workers.engine.load.quantize import StoredFormat
from workers.engine.load.report import Report
from workers.engine.models.description import ModelDescription
from workers.engine.models.tensor_names import (
    head_name,
    is_activation_scale,
    is_cache_scale,
    prefix_of,
)


def check_unread(
    checkpoint: Checkpoint,
    config: ModelDescription,
    taken: Collection[str],
    model_dir: Path,
    *,
    only: str,
    report: Report,
) -> None:
    """Refuse tensors beyond `taken` whose names begin with `only`: they mean a model that would run
    wrongly. Scales of keys and values, and static ones of activations where weights have a scale
    by tensor, are left out with a line. Raises `ConfigError`.
    """
    skipped = _skipped(checkpoint, config)
    num_scales = num_static = 0
    for name in sorted(checkpoint.names - set(taken)):
        is_skipped = name.startswith(skipped) or not name.startswith(only)
        if is_skipped or _is_idle(checkpoint, config, name):
            continue
        if is_cache_scale(name):
            num_scales += 1
        elif config.stored is StoredFormat.FP8_TENSORS and is_activation_scale(name):
            num_static += 1
        else:
            raise _unexplained(name, model_dir, config)
    if num_scales:
        text = "scales of keys and values (k_scale, v_scale) are ignored"
        report("load", 1.0, f"{num_scales} {text}: keys and values keep their own")
    if num_static:
        text = "static scales of activations are ignored: each row is scaled by its own numbers"
        report("load", 1.0, f"{num_static} {text}")


def check_parts(checkpoint: Checkpoint, config: ModelDescription, model_dir: Path) -> None:
    """Refuse, before anything is read, a checkpoint with parts that the network does not have, as
    an unknown tower or a further layer, and one that lacks a layer. Raises `ConfigError`.
    """
    names, own, skipped = checkpoint.names, config.names, _skipped(checkpoint, config)
    prefix = prefix_of(names, own.prefixes)
    head = head_name(names, prefix, own.head)
    sides = (own.side_embedding, own.side_in, own.side_in_norm)
    parts = {"embed_tokens", "norm", *(name.partition(".")[0] for name in sides)}
    layers = {f"layers.{index}" for index in range(config.num_layers)}
    missing = set(layers)
    for name in sorted(names):
        inner = name.removeprefix(prefix).split(".")
        layer = ".".join(inner[:2])
        missing.discard(layer)
        is_own = name.startswith(prefix) and (inner[0] in parts or layer in layers)
        if is_own or name.startswith((*skipped, f"{head}.")) or is_cache_scale(name):
            continue
        if not _is_idle(checkpoint, config, name):
            raise _unexplained(name, model_dir, config)
    if missing:
        raise ConfigError(
            f"{model_dir} has no tensor of {prefix}{min(missing, key=_layer_number)}, one of the "
            f"{config.num_layers} layers of its config.json: fetch the model again"
        )


def _layer_number(layer: str) -> int:
    return int(layer.rpartition(".")[2])


def _skipped(checkpoint: Checkpoint, config: ModelDescription) -> tuple[str, ...]:
    """The beginnings of the names of what is left out without a word."""
    prefix = prefix_of(checkpoint.names, config.names.prefixes)
    head = head_name(checkpoint.names, prefix, config.names.head)
    return config.names.skipped + ((f"{head}.",) if config.tied else ())


def _unexplained(name: str, model_dir: Path, config: ModelDescription) -> ConfigError:
    return ConfigError(
        f"{model_dir} has a tensor {name} that its config.json does not explain: "
        f"take weights and config of the same {config.family} model"
    )


def _is_idle(checkpoint: Checkpoint, config: ModelDescription, name: str) -> bool:
    """Whether a tensor changes nothing: angles, and the zeros that GPTQ keeps as biases."""
    if name.endswith("rotary_emb.inv_freq"):
        return True
    if not name.endswith(".bias") or not config.stored.is_int4:
        return False
    return not checkpoint.read(name, checkpoint.shape_of(name)).any()
