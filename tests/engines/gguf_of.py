"""`python -m tests.engines.gguf_of MODEL_DIR OUT.gguf`: a Qwen3 dense checkpoint as GGUF in f16.

For tests with a real llama-server. Needs the `gguf` package, which Herma itself does not.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from safetensors.torch import load_file

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def tensor_name(name: str) -> str:
    """llama.cpp's name of a tensor of the checkpoint."""
    if name in _OUTER:
        return _OUTER[name]
    _, _, number, rest = name.split(".", 3)
    return f"blk.{number}.{_LAYER[rest.removesuffix('.weight')]}.weight"


def write_gguf(model_dir: Path, out: Path) -> None:
    """Write the checkpoint in `model_dir` to `out`."""
    config = json.loads((model_dir / "config.json").read_text())
    writer = GGUFWriter(str(out), "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    _add_tokenizer(writer, model_dir, config)
    for name, tensor in load_file(model_dir / "model.safetensors").items():
        # Vectors stay in f32, as llama.cpp's own converter keeps them.
        is_matrix = tensor.dim() > 1
        data = tensor.to(torch.float16 if is_matrix else torch.float32).numpy()
        kind = GGMLQuantizationType.F16 if is_matrix else GGMLQuantizationType.F32
        writer.add_tensor(tensor_name(name), np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: GGUFWriter, model_dir: Path, config: dict[str, int]) -> None:
    """Add the words and merges of the tokenizer. How it splits text does not matter, because the
    server gets token ids.
    """
    tokenizer = json.loads((model_dir / "tokenizer.json").read_text())
    size = config["vocab_size"]
    words = [f"[PAD{at}]" for at in range(size)]
    kinds = [TokenType.UNUSED] * size
    for word, at in tokenizer["model"]["vocab"].items():
        words[at], kinds[at] = word, TokenType.NORMAL
    for token in tokenizer["added_tokens"]:
        kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        words[token["id"]], kinds[token["id"]] = token["content"], kind
    merges = [
        merge if isinstance(merge, str) else " ".join(merge)
        for merge in tokenizer["model"]["merges"]
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
