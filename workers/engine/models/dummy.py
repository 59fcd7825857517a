"""Models of a known shape whose weights are drawn, not read: only for measuring speed.

Owns the names `dummy:qwen3-8b` (a shape that is installed with Herma) and `dummy:DIR` (that of a
model directory), and the draw. They have no tokenizer, so the configuration of a served worker
refuses them (`config/checks.py`). Must not know who measures.
"""

from importlib.resources import files
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from config.model import DUMMY_PREFIX
from protocol.errors import ConfigError
from workers.engine.load.quantize import quantised
from workers.engine.models.model_config import CONFIG_NAME, Qwen3Config
from workers.engine.models.weights import LayerWeights, Qwen3Weights

_BRANCH_GAIN: Final = 2.0
"""Attention averages values and SwiGLU halves what goes through it."""

_KEY_NORM: Final = 2.0**0.5
"""Of queries and of keys, so that scores spread by 2 and attention is of few keys, not of all."""


def dummy_names() -> list[str]:
    """The shapes that are installed, smallest first."""
    home = Path(str(files("config") / "dummy"))
    names = [path.name for path in home.iterdir() if path.is_dir()]
    return sorted(names, key=lambda name: float(name.rpartition("-")[2].removesuffix("b")))


def dummy_dir(model: str) -> Path:
    """The directory whose config.json is the shape of `dummy:...`. Raises `ConfigError`."""
    name = model.removeprefix(DUMMY_PREFIX)
    if name in dummy_names():
        return Path(str(files("config") / "dummy" / name))
    path = Path(name).expanduser()
    if (path / CONFIG_NAME).is_file():
        return path.resolve()
    known = ", ".join(f"{DUMMY_PREFIX}{each}" for each in dummy_names())
    raise ConfigError(f"model {model!r} is neither a directory with {CONFIG_NAME} nor of {known}")


def draw_weights(
    config: Qwen3Config,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    *,
    fp8: bool = False,
) -> Qwen3Weights:
    """Seeded normal weights, made where they stay. Milliseconds on a card.

    They are drawn so that answers can be checked: the first layer makes a state, to which all
    others together add as much again, each 1 / sqrt(2 layers). With equal layers every one would
    turn the sum of those before it around, and 36 of them make 5 % of the logits' spread out of the
    rounding of bfloat16; these make 2.5 %, and one layer without its MLP a tenth.

    `fp8`: the same weights with the layers' products in 8 bits.
    """
    # On a card that is not there (`kernels.recorder`) nothing is drawn.
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(seed)

    def drawn(*shape: int, gain: float = 1.0) -> Tensor:
        empty = torch.empty(shape, dtype=dtype, device=device)
        if generator is None:
            return empty
        return empty.normal_(0.0, gain * shape[-1] ** -0.5, generator=generator)

    def norms(*shape: int, value: float = 1.0) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=device)

    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, key = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def layer(index: int) -> LayerWeights:
        gain = _BRANCH_GAIN * ((2 * config.num_layers) ** -0.5 if index else 1.0)
        drawn_layer = LayerWeights(
            input_norm=norms(hidden),
            qkv=drawn(query + 2 * key, hidden),
            qkv_bias=drawn(query + 2 * key) if config.attention_bias else None,
            qk_norm=norms(config.num_heads + config.num_kv_heads, head_dim, value=_KEY_NORM),
            out=drawn(hidden, query, gain=gain),
            out_bias=drawn(hidden) if config.attention_bias else None,
            post_norm=norms(hidden),
            gate_up=drawn(2 * inner, hidden),
            down=drawn(hidden, inner, gain=gain),
        )
        return quantised(drawn_layer) if fp8 else drawn_layer

    layers = tuple(layer(index) for index in range(config.num_layers))
    embedding = drawn(config.vocab_size, hidden)
    head = embedding if config.tied else drawn(config.vocab_size, hidden)
    return Qwen3Weights(embedding, layers, norms(hidden), head)
