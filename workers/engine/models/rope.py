"""The rotation of a model's queries and keys, as its config.json states it.

Owns the spellings of it: `rope_parameters` of transformers 5, `rope_theta` and `rope_scaling` of
the versions before. Must not know tensors.
"""

import math
from typing import Final

from msgspec.structs import replace

from workers.engine.models.config_file import ConfigFile
from workers.engine.models.description import Rope, RopeKind

_DEFAULT_THETA: Final = 10_000.0

_SHARE: Final = "partial_rotary_factor"
_LASTING: Final = ("rope_theta", _SHARE)
"""The keys that scaling does not change."""

_GROWTH: Final = "llama_4_scaling_beta"
"""The key of Ministral 3, whose queries grow with each further window of the original length."""

_SPELLINGS: Final = {"su": RopeKind.LONG, **{kind.value: kind for kind in RopeKind}}


def read_rope(
    file: ConfigFile,
    head_dim: int,
    *,
    parameters: ConfigFile | None = None,
    theta: float = _DEFAULT_THETA,
) -> Rope:
    """The rotation of heads of `head_dim` dimensions. `parameters` None are the file's own, `theta`
    is the base where none is stated. Raises `ConfigError`.
    """
    stated = parameters or stated_rotation(file)
    kind = _kind(stated)
    base = stated if stated.raw.get("rope_theta") else file
    share = stated if stated.raw.get(_SHARE) else file
    if kind is RopeKind.PROPORTIONAL:
        return Rope(
            dim=head_dim,
            theta=base.number("rope_theta", theta),
            kind=kind,
            factor=stated.number("factor", 1.0),
            pairs=int(stated.number(_SHARE, 1.0) * head_dim // 2),
        )
    dim = int(head_dim * share.number(_SHARE, 1.0))
    if dim % 2 or not 0 < dim <= head_dim:
        raise file.lacks(f"a rotation of {dim} of {head_dim} dimensions")
    rope = Rope(dim=dim, theta=base.number("rope_theta", theta), kind=kind)
    rope = _READERS[kind](file, stated, rope)
    if not stated.raw.get(_GROWTH):
        return rope
    return replace(rope, growth=stated.number(_GROWTH), original=_original(file, stated))


def stated_rotation(file: ConfigFile) -> ConfigFile:
    """The keys of the file's rotation. A `rope_scaling` beside `rope_parameters` was added for a
    longer window: it counts, as in transformers; the base and the share of the others stay.
    """
    parameters, scaling = file.table("rope_parameters"), file.table("rope_scaling")
    if not scaling.raw:
        return parameters
    kept = {key: parameters.raw[key] for key in _LASTING if key in parameters.raw}
    return ConfigFile(file.path, {**kept, **scaling.raw})


def refuse_partial(file: ConfigFile, *rotations: ConfigFile) -> None:
    """Refuse a share of each head to rotate, where engines read it differently: transformers turns
    whole heads of these families. `rotations` none is the file's own.
    """
    for table in (file, *(rotations or (stated_rotation(file),))):
        if table.raw.get(_SHARE) not in (None, 1):
            raise file.lacks(f"{_SHARE} = {table.raw[_SHARE]!r} in this family")


def scaled_window(file: ConfigFile, rope: Rope) -> int:
    """The longest sequence: published YaRN configs state the window before it was stretched."""
    stated = file.count("max_position_embeddings")
    if rope.kind is RopeKind.YARN:
        return max(stated, int(rope.original * rope.factor))
    return stated


def _kind(stated: ConfigFile) -> RopeKind:
    spelling = stated.raw.get("rope_type") or stated.raw.get("type") or RopeKind.DEFAULT.value
    if not isinstance(spelling, str) or spelling not in _SPELLINGS:
        raise stated.error(
            f"rope scaling {spelling!r} is not supported: remove it to serve the original window, "
            "or choose another model"
        )
    return _SPELLINGS[spelling]


def _plain(_file: ConfigFile, _stated: ConfigFile, rope: Rope) -> Rope:
    return rope


def _linear(_file: ConfigFile, stated: ConfigFile, rope: Rope) -> Rope:
    return replace(rope, factor=stated.number("factor"))


def _llama3(file: ConfigFile, stated: ConfigFile, rope: Rope) -> Rope:
    return replace(
        rope,
        factor=stated.number("factor"),
        original=_original(file, stated),
        low=stated.number("low_freq_factor"),
        high=stated.number("high_freq_factor"),
    )


def _yarn(file: ConfigFile, stated: ConfigFile, rope: Rope) -> Rope:
    """Peng et al., 2023. The magnitude is 0.1 ln(factor) + 1 unless stated."""
    original = _original(file, stated)
    factor = stated.number("factor", file.count("max_position_embeddings") / original)
    magnitude = _yarn_magnitude(factor, 1.0)
    if stated.raw.get("mscale") and stated.raw.get("mscale_all_dim"):
        above, below = (stated.number(key) for key in ("mscale", "mscale_all_dim"))
        magnitude = _yarn_magnitude(factor, above) / _yarn_magnitude(factor, below)
    return replace(
        rope,
        factor=factor,
        original=original,
        low=stated.number("beta_slow", 1.0),
        high=stated.number("beta_fast", 32.0),
        truncate=stated.flag("truncate", default=True),
        magnitude=stated.number("attention_factor", magnitude),
    )


def _original(file: ConfigFile, stated: ConfigFile) -> int:
    """The window before it was stretched. As in transformers, a file that states it beside the
    rotation means that; without either it is the file's window.
    """
    key = "original_max_position_embeddings"
    source = file if file.raw.get(key) else stated
    return source.count(key, file.count("max_position_embeddings"))


def _yarn_magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _long(file: ConfigFile, stated: ConfigFile, rope: Rope) -> Rope:
    """Ding et al., 2024: a divisor for each pair, and others for windows beyond the original."""
    original, magnitude = _original(file, stated), 1.0
    factor = stated.number("factor", file.count("max_position_embeddings") / original)
    if factor > 1:
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original))
    return replace(
        rope,
        original=original,
        magnitude=stated.number("attention_factor", magnitude),
        divisors=stated.numbers("short_factor", rope.dim // 2),
        long_divisors=stated.numbers("long_factor", rope.dim // 2),
    )


_READERS: Final = {
    RopeKind.DEFAULT: _plain,
    RopeKind.LINEAR: _linear,
    RopeKind.LLAMA3: _llama3,
    RopeKind.YARN: _yarn,
    RopeKind.LONG: _long,
}
