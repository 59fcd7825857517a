"""Under which names a checkpoint holds a network.

Owns the parts of a tensor's name that depend on how a model was saved: what stands before the
network's own names, where the head is, and what exporters leave beside the weights. Must not know
tensors.
"""

from collections.abc import Collection
from typing import Final

EMBEDDING: Final = "embed_tokens.weight"

_CACHE_SCALES: Final = (
    "k_scale",
    "v_scale",
    "kv_scale",
    "q_scale",
    "prob_scale",
    "output_scale",
    "k_zero_point",
    "v_zero_point",
)
"""Names of scales that some exporters write for keys and values in 8 bits; ours have no scales."""

_ACTIVATION_SCALES: Final = ("input_scale", "activation_scale")
"""Names of static scales of the rows that a product multiplies; ours are made for each row."""


def prefix_of(names: Collection[str], prefixes: tuple[str, ...]) -> str:
    """The prefix of the network's names; the first of `prefixes` where none fits. A network without
    its head has none.
    """
    has = (each for each in (*prefixes, "") if f"{each}{EMBEDDING}" in names)
    return next(has, prefixes[0])


def foreign_prefix(names: Collection[str], prefixes: tuple[str, ...]) -> str | None:
    """The prefix that comes before each of `prefixes`, if the model was saved as a part of another
    model; else None.
    """
    if f"{prefix_of(names, prefixes)}{EMBEDDING}" in names:
        return None
    found = next((name for name in sorted(names) if name.endswith(f".{EMBEDDING}")), None)
    if found is None:
        return None
    own = next(one for one in (*prefixes, "") if found.endswith(f".{one}{EMBEDDING}"))
    return found.removesuffix(f"{own}{EMBEDDING}")


def head_name(names: Collection[str], prefix: str, head: str) -> str:
    """The name of the head: beside the network, or within the part of a file that is the text
    model.
    """
    inner = f"{prefix.removesuffix('model.')}{head}"
    return inner if any(name.startswith(f"{inner}.") for name in names) else head


def is_cache_scale(name: str) -> bool:
    """Whether the tensor is a scale of keys or values."""
    return ".self_attn." in name and name.rpartition(".")[2] in _CACHE_SCALES


def is_activation_scale(name: str) -> bool:
    """Whether the tensor is a static scale of a product's rows, of one matrix or of all experts."""
    return name.endswith(_ACTIVATION_SCALES)


def last_part(name: str) -> str:
    """What a module is called within the one that has it."""
    return name.rpartition(".")[2]
