"""What the configurations of decoder families have in common.

Owns the reading of the keys that they share. Must not know which family reads them.
"""

from collections.abc import Iterable
from typing import Any, Final

from workers.engine.load.quantize import promised_by, read_stored
from workers.engine.models.config_file import ConfigFile, pools_last_token
from workers.engine.models.description import Attention, Dense, Gate, Layer, ModelDescription, Rope
from workers.engine.models.rope import read_rope, scaled_window
from workers.model_dir import read_eos_ids

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"

_OTHER_NAMES: Final = {
    "swish": Gate.SILU,
    "gelu_new": Gate.GELU_TANH,
    "gelu_fast": Gate.GELU_TANH,
    "gelu_python_tanh": Gate.GELU_TANH,
}
"""Further names that transformers has for the same functions."""


def head_sizes(file: ConfigFile) -> tuple[int, int, int]:
    """Query heads, key heads and dimensions of a head."""
    num_heads = file.count("num_attention_heads")
    head_dim = file.count("head_dim", max(1, file.count("hidden_size") // num_heads))
    num_kv_heads = file.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise file.error(
            f"{num_heads} heads for {num_kv_heads} key heads of {head_dim} dimensions do not fit "
            "together"
        )
    return num_heads, num_kv_heads, head_dim


def attention(file: ConfigFile, rope: Rope | None = None, **features: Any) -> Attention:  # noqa: ANN401
    """Attention of the file's sizes with `features` of `Attention`; `rope` None is the file's."""
    num_heads, num_kv_heads, head_dim = head_sizes(file)
    features.setdefault("scale", head_dim**-0.5)
    return Attention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rope=rope or read_rope(file, head_dim),
        **features,
    )


def dense(file: ConfigFile, key: str = "hidden_act", gate: Gate = Gate.SILU) -> Dense:
    """The feed-forward network, whose gate is stated under `key` or is `gate`."""
    stated = file.raw.get(key) or gate.value
    known = {**_OTHER_NAMES, **{each.value: each for each in Gate}}
    if not isinstance(stated, str) or stated not in known:
        raise file.lacks(f"{key} = {stated!r}")
    return Dense(width=file.count("intermediate_size"), gate=known[stated])


def layer_windows(file: ConfigFile, window: int, default: Iterable[str]) -> tuple[int, ...]:
    """The window of each layer, 0 for all: by `layer_types`, or by `default` without them."""
    count = file.count("num_hidden_layers")
    kinds = file.words("layer_types", count, (FULL, SLIDING)) or tuple(default)
    return tuple([window if kind == SLIDING else 0 for kind in kinds])


def logit_cap(file: ConfigFile) -> float:
    """The bound of logits, by a tangent; 0 for none."""
    key = "final_logit_softcapping"
    return file.number(key) if file.raw.get(key) else 0.0


def tied_by(*tables: ConfigFile) -> dict[str, object]:
    """The key for a tied head, set if any of the tables of a file says so: transformers writes it
    into the outer one or that of the text model, and its default, false, into the other.
    """
    key = "tie_word_embeddings"
    return {key: True} if any(table.raw.get(key) is True for table in tables) else {}


def decoder(
    file: ConfigFile,
    family: str,
    layers: Iterable[Layer],
    *,
    tied: bool = False,
    **features: Any,  # noqa: ANN401 - those of `ModelDescription`
) -> ModelDescription:
    """The network of these layers; `tied` is what holds where the file does not say."""
    described = tuple(layers)
    dtype = file.raw.get("dtype") or file.raw.get("torch_dtype") or "float32"
    ropes = [layer.mixer.rope for layer in described if isinstance(layer.mixer, Attention)]
    if not ropes:
        raise file.lacks("a network without attention")
    return ModelDescription(
        family=family,
        vocab_size=file.count("vocab_size"),
        hidden_size=file.count("hidden_size"),
        layers=described,
        max_position_embeddings=max(scaled_window(file, rope) for rope in ropes),
        rms_norm_eps=file.number("rms_norm_eps", 1e-6),
        tied=file.flag("tie_word_embeddings", default=tied),
        dtype=str(dtype),
        eos_ids=frozenset(read_eos_ids(file.path.parent)),
        stored=read_stored(file.path, dict(file.raw)),
        promised=promised_by(file.raw.get("quantization_config")),
        embeds=pools_last_token(file.path.parent),
        **features,
    )
