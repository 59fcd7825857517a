"""The shape of a Qwen3 dense model, read from its config.json.

Owns which models we run and what we say about the others. Must not know tensors.
"""

from pathlib import Path
from typing import Any, Final

import msgspec

from protocol.errors import ConfigError
from workers.engine.load.quantize import Stored, read_stored
from workers.model_dir import CONFIG_NAME, read_eos_ids, read_json

ARCHITECTURE: Final = "Qwen3ForCausalLM"
_DEFAULT_ROPE_THETA: Final = 10_000.0


class Qwen3Config(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and constants of the network. `dtype` is that of the checkpoint, `stored` how it holds
    the matrices of its layers.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tied: bool
    attention_bias: bool
    dtype: str
    eos_ids: frozenset[int]
    stored: Stored = Stored.DENSE


def read_model_config(model_dir: Path) -> Qwen3Config:
    """The configuration of the model in `model_dir`. Raises `ConfigError` for one we cannot run."""
    path = model_dir / CONFIG_NAME
    raw = read_json(path)
    _check_supported(path, raw)
    num_heads = _count(path, raw, "num_attention_heads")
    hidden_size = _count(path, raw, "hidden_size")
    config = Qwen3Config(
        vocab_size=_count(path, raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_count(path, raw, "intermediate_size"),
        num_layers=_count(path, raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_count(path, raw, "num_key_value_heads", num_heads),
        head_dim=_count(path, raw, "head_dim", max(1, hidden_size // num_heads)),
        max_position_embeddings=_count(path, raw, "max_position_embeddings"),
        rms_norm_eps=_number(path, raw, "rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(path, raw),
        tied=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bool(raw.get("attention_bias", False)),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        eos_ids=frozenset(read_eos_ids(model_dir)),
        stored=read_stored(path, raw),
    )
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise ConfigError(
            f"{path}: {config.num_heads} heads for {config.num_kv_heads} key heads of "
            f"{config.head_dim} dimensions do not fit together"
        )
    return config


def _check_supported(path: Path, raw: dict[str, Any]) -> None:
    architectures = raw.get("architectures") or [raw.get("model_type")]
    if raw.get("model_type", "qwen3") != "qwen3" or architectures not in (
        [ARCHITECTURE],
        ["qwen3"],
    ):
        shown = ", ".join(map(str, architectures))
        raise ConfigError(
            f"{path}: architecture {shown} is not supported: choose a dense {ARCHITECTURE} model"
        )
    layer_types = raw.get("layer_types") or []
    if raw.get("use_sliding_window") or "sliding_attention" in layer_types:
        raise ConfigError(
            f"{path}: sliding-window attention is not supported: choose another model"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{path}: hidden_act {raw['hidden_act']!r} is not supported, only 'silu'")


def _rope_theta(path: Path, raw: dict[str, Any]) -> float:
    """Read `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default":
        raise ConfigError(
            f"{path}: rope scaling {kind!r} is not supported: remove it to serve the original "
            "window, or choose another model"
        )
    source = rope if "rope_theta" in rope else raw
    return _number(path, source, "rope_theta", _DEFAULT_ROPE_THETA)


def _count(path: Path, raw: dict[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{path}: {key} is {value!r}, not a positive integer: fetch it again")
    return value


def _number(path: Path, raw: dict[str, Any], key: str, default: float) -> float:
    value = raw.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"{path}: {key} is {value!r}, not a positive number: fetch it again")
    return float(value)
