"""Writes the trained network in Hugging Face's layout, and reads its weights back.

Owns the content of the files. Must not know how the network was trained; the model card is passed
in as text.
"""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from training.model import Qwen3
from training.render import TEMPLATE_NAME, Template
from training.settings import Shape
from training.tokenizer import END_OF_TEXT, END_OF_TURN, to_json, token_id, tokenizer_config

WEIGHTS_NAME: Final = "model.safetensors"
TOKENIZER_NAME: Final = "tokenizer.json"


def round_to_bfloat16(network: Qwen3) -> None:
    """Round the weights, in place, to the values that the file will hold."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.bfloat16())


def export(network: Qwen3, tokenizer: Tokenizer, template: Template, out: Path) -> None:
    """Write everything but the model card into the directory `out`."""
    out.mkdir(parents=True, exist_ok=True)
    shape = network.shape
    eos_id, pad_id = (token_id(tokenizer, name) for name in (END_OF_TURN, END_OF_TEXT))
    generation = {
        "do_sample": False,
        "eos_token_id": [eos_id, pad_id],
        "pad_token_id": pad_id,
    }
    texts = {
        "config.json": to_json(_config(shape, network.vocab_size, eos_id, pad_id)),
        "generation_config.json": to_json(generation),
        TOKENIZER_NAME: to_json(json.loads(tokenizer.to_str())),
        "tokenizer_config.json": to_json(tokenizer_config(shape.context_length)),
        TEMPLATE_NAME: template.source,
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in network.state_dict().items()
    }
    save_file(tensors, out / WEIGHTS_NAME, metadata={"format": "pt"})
    (out / WEIGHTS_NAME).chmod(0o644)  # The library makes it readable for its owner only.


def load_weights(network: Qwen3, directory: Path) -> None:
    """Take the weights of an exported model. Raises `RuntimeError` if its form is another."""
    network.load_state_dict(load_file(directory / WEIGHTS_NAME))


def _config(shape: Shape, vocab_size: int, eos_id: int, pad_id: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": eos_id,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "max_position_embeddings": shape.context_length,
        "model_type": "qwen3",
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "pad_token_id": pad_id,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": vocab_size,
    }
