"""gpt-oss: layers with a window and without by turns, whose heads have sinks, and mixtures of
clamped experts with biases.

Owns what its config.json says. Must not know tensors.
"""

from typing import Final

from kernels.experts import Activation
from workers.engine.load.quantize import StoredFormat
from workers.engine.models.config_file import ConfigFile
from workers.engine.models.decoder_keys import FULL, SLIDING, attention, decoder, layer_windows
from workers.engine.models.description import Layer, ModelDescription, TensorNames
from workers.engine.models.mixture import mixture
from workers.engine.models.rope import read_rope, refuse_partial

MODEL_TYPES: Final = ("gpt_oss",)
ARCHITECTURES: Final = ("GptOssForCausalLM",)
FORMATS: Final = (StoredFormat.DENSE, StoredFormat.MXFP4)
"""Gates and ups alternate in all experts' one tensor, which is read in no other form."""

_NAMES: Final = TensorNames(router="mlp.router", alternate=True)

_THETA: Final = 150_000.0

_DEFAULTS: Final = {
    "vocab_size": 201_088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "sliding_window": 128,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}
"""transformers' defaults of absent keys."""


def describe(file: ConfigFile) -> ModelDescription:
    """See `families`."""
    stated = file.stated
    default = {**_DEFAULTS}
    if "rope_scaling" in stated:
        del default["rope_parameters"]
    file = ConfigFile(file.path, {**default, **stated})
    refuse_partial(file)
    rope = read_rope(file, file.count("head_dim"), theta=_THETA)
    biased = file.flag("attention_bias", default=True)
    experts = mixture(
        file,
        renormalises=True,
        width=file.count("intermediate_size"),
        activation=Activation(
            slope=file.number("swiglu_alpha", 1.702),
            shift=1.0,
            limit=file.number("swiglu_limit", 7.0),
        ),
        biased=True,
    )
    kinds = [FULL if index % 2 else SLIDING for index in range(file.count("num_hidden_layers"))]
    layers = [
        Layer(
            mixer=attention(
                file, rope, window=window, sinks=True, qkv_bias=biased, out_bias=biased
            ),
            mlp=experts,
        )
        for window in layer_windows(file, file.count("sliding_window"), kinds)
    ]
    return decoder(file, "gpt-oss", layers, names=_NAMES)
