"""MTP heads of tiny models with latent attention on disk, as DeepSeek-V3 publishes them, and what
transformers makes of their layer.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.fakes.tiny_families import write_family

_TENSORS = "model.safetensors"
_OWN = ("enorm", "hnorm", "eh_proj", "embed_tokens", "shared_head")


def write_with_head(path: Path, family: str, *, seed: int = 1) -> Path:
    """A model of the family with a drawn head: a layer like its last one, two norms, what joins
    them, and copies of the embedding and the output head.
    """
    write_family(path, family)
    config = json.loads((path / "config.json").read_bytes())
    tensors, layers = load_file(path / _TENSORS), config["num_hidden_layers"]
    hidden, generator = config["hidden_size"], torch.Generator().manual_seed(seed)
    last, own = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    shapes = {
        own + name.removeprefix(last): tuple(tensor.shape)
        for name, tensor in tensors.items()
        if name.startswith(last)
    }
    for name in ("enorm", "hnorm", "shared_head.norm"):
        shapes[f"{own}{name}.weight"] = (hidden,)
    shapes[f"{own}eh_proj.weight"] = (hidden, 2 * hidden)
    for name, shape in shapes.items():
        tensors[name] = torch.randn(shape, generator=generator) * 0.2 + ("norm" in name)
    tensors[f"{own}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[f"{own}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, path / _TENSORS, metadata={"format": "pt"})
    config["num_nextn_predict_layers"] = 1
    (path / "config.json").write_text(json.dumps(config))
    return path


def make_right(path: Path, *, influence: float) -> None:
    """Change the model so that the token that follows depends on the last one, but for what its
    layers add, which is multiplied by `influence`; and the head so that it says what follows.
    """
    config = json.loads((path / "config.json").read_bytes())
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    tensors, own = load_file(path / _TENSORS), f"model.layers.{layers}."
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.mul_(0.0 if name.startswith(own) else influence)
    tensors["model.embed_tokens.weight"].copy_(
        torch.randn(config["vocab_size"], hidden, generator=torch.Generator().manual_seed(2))
    )
    tensors[f"{own}eh_proj.weight"].copy_(torch.eye(hidden, 2 * hidden))
    tensors[f"{own}enorm.weight"].fill_(1.0)
    tensors[f"{own}shared_head.norm.weight"].copy_(tensors["model.norm.weight"])
    save_file(tensors, path / _TENSORS, metadata={"format": "pt"})


class ReferenceHead:
    """The head as the README_WEIGHTS.md of DeepSeek-V3 describes it, around a layer of
    transformers. No cache: every draft computes all rows again.
    """

    def __init__(self, path: Path, room: Path) -> None:
        """The head of the model in `path`; `room` is a new directory, for a model whose last layer
        is the head's.
        """
        shutil.copytree(path, room)
        config = json.loads((path / "config.json").read_bytes())
        layers = config["num_hidden_layers"]
        config |= {"num_hidden_layers": layers + 1, "num_nextn_predict_layers": 0}
        if "mlp_layer_types" in config:
            config["mlp_layer_types"] += ["sparse"]
        (room / "config.json").write_text(json.dumps(config))
        tensors, own = load_file(path / _TENSORS), f"model.layers.{layers}."
        self._own = {name: tensors.pop(own + name) for name in self._names(tensors, own)}
        save_file(tensors, room / _TENSORS, metadata={"format": "pt"})
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(room, dtype=torch.float32)
        self._model, self._layer = model.model, model.model.layers[layers]
        self._eps = model.config.rms_norm_eps

    @staticmethod
    def _names(tensors: dict[str, Tensor], own: str) -> list[str]:
        names = [name.removeprefix(own) for name in tensors if name.startswith(own)]
        return [name for name in names if name.startswith(_OWN)]

    def draft(self, states: Tensor, next_ids: list[int], depth: int) -> tuple[list[int], Tensor]:
        """Drafts, and the logits behind them; `states` of the target behind its last norm
        [tokens, hidden], and the token behind each.
        """
        ids, chosen, logits = list(next_ids), [], []
        for _ in range(depth):
            out = self._normed(self._rows(ids, states), "shared_head.norm")[-1:]
            logits.append((out @ self._own["shared_head.head.weight"].T)[0])
            chosen.append(int(logits[-1].argmax()))
            ids.append(chosen[-1])
            states = torch.cat((states, out))
        return chosen, torch.stack(logits)

    def _rows(self, ids: list[int], states: Tensor) -> Tensor:
        embedded = F.embedding(torch.tensor(ids), self._own["embed_tokens.weight"])
        both = self._normed(embedded, "enorm"), self._normed(states, "hnorm")
        x = (torch.cat(both, 1) @ self._own["eh_proj.weight"].T)[None]
        places = torch.arange(len(ids))[None]
        mask = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
        out = self._layer(
            x,
            attention_mask=mask,
            position_ids=places,
            position_embeddings=self._model.rotary_emb(x, places),
        )
        found: Tensor = (out if isinstance(out, Tensor) else out[0])[0]
        return found

    def _normed(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self._own[f"{name}.weight"], self._eps)
