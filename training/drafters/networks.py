"""The drafters' networks, with the parameters' names of published ones.

Owns their forward passes over examples. Must not know losses.
"""

from typing import Final, cast

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor, nn

from training.drafters.examples import Examples
from training.model import Norm, Qwen3, TrainedLayer
from training.settings import Shape

BLOCK: Final = 8
MTP_DEPTH: Final = 3


class TrainedDrafter(nn.Module):
    """`taps` are the model's layers that it reads, `depth` how many tokens it drafts there."""

    taps: tuple[int, ...] = ()
    depth: int = 0

    def forward(self, model: Qwen3, given: Examples) -> Tensor:
        """Logits [A, depth, vocabulary]."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """By their published names."""
        return dict(self.state_dict())


class TrainedDFlash(TrainedDrafter):
    """Two layers over a block of 8."""

    def __init__(self, shape: Shape, taps: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.taps, self.depth = taps, BLOCK - 1
        self.fc = nn.Linear(len(taps) * hidden, shape.hidden, bias=False)
        self.hidden_norm = Norm(shape.hidden, shape.rms_norm_eps)
        self.layers = nn.ModuleList(TrainedLayer(shape) for _ in range(shape.num_layers))
        self.norm = Norm(shape.hidden, shape.rms_norm_eps)
        self.mask_embedding = nn.Parameter(torch.randn(shape.hidden) * 0.02)

    def forward(self, model: Qwen3, given: Examples) -> Tensor:
        """See `TrainedDrafter`."""
        anchors, device = given.anchors, given.tokens.device
        context = self.hidden_norm(self.fc(given.taps))
        x = self.mask_embedding.expand(len(anchors), BLOCK, -1).clone()
        x[:, 0] = model.model.embed_tokens(given.tokens[anchors])
        x = x.flatten(0, 1)
        steps = torch.arange(BLOCK, device=device)
        places = (given.positions[anchors][:, None] + steps).flatten()
        number = torch.arange(len(anchors), device=device).repeat_interleave(BLOCK)
        seen = torch.cat((_before(given)[number], number[:, None] == number[None]), 1)
        all_places = torch.cat((given.positions, places))
        for module in self.layers:
            layer = cast("TrainedLayer", module)
            rows = torch.cat((context, layer.input_layernorm(x)))
            query, key, value = layer.self_attn.project(rows, model.angles(all_places))
            x = x + layer.self_attn.o_proj(_attend(query[len(context) :], key, value, seen))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        states = self.norm(x).view(len(anchors), BLOCK, -1)[:, 1:]
        return F.linear(states, model.model.embed_tokens.weight)


class Mtp(TrainedDrafter):
    """One layer that is given its own states for the drafts behind the first."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.depth = MTP_DEPTH
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.pre_fc_norm_embedding = Norm(shape.hidden, shape.rms_norm_eps)
        self.pre_fc_norm_hidden = Norm(shape.hidden, shape.rms_norm_eps)
        self.layers = nn.ModuleList([TrainedLayer(shape)])
        self.norm = Norm(shape.hidden, shape.rms_norm_eps)

    def forward(self, model: Qwen3, given: Examples) -> Tensor:
        """See `TrainedDrafter`. Row t has the token at t + 1 and stands at t."""
        layer, anchors = cast("TrainedLayer", self.layers[0]), given.anchors
        following = torch.cat((given.tokens[1:], given.tokens[:1]))
        x = self._mixed(model, following, given.last)
        rows = layer.input_layernorm(x)
        query, key, value = layer.self_attn.project(rows, model.angles(given.positions))
        first = anchors - 1
        seen = _before(given)  # rows up to the one before the anchor
        keys, values = [key], [value]
        query, x = query[first], x[first]
        states: list[Tensor] = []
        for step in range(self.depth):
            if step:
                token = given.labels[:, step - 1]
                x = self._mixed(model, token, states[-1])
                places = given.positions[anchors] + step - 1
                own = layer.self_attn.project(layer.input_layernorm(x), model.angles(places))
                query = own[0]
                keys.append(own[1])
                values.append(own[2])
                mine = torch.eye(len(anchors), dtype=torch.bool, device=seen.device)
                seen = torch.cat((seen, mine), 1)
            mixed = _attend(query, torch.cat(keys), torch.cat(values), seen)
            x = x + layer.self_attn.o_proj(mixed)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            states.append(self.norm(x))
        return F.linear(torch.stack(states, 1), model.model.embed_tokens.weight)

    def tensors(self) -> dict[str, Tensor]:
        """See `TrainedDrafter`."""
        return {f"mtp.{name}": tensor for name, tensor in self.state_dict().items()}

    def _mixed(self, model: Qwen3, tokens: Tensor, states: Tensor) -> Tensor:
        embedded = self.pre_fc_norm_embedding(model.model.embed_tokens(tokens))
        out: Tensor = self.fc(torch.cat((embedded, self.pre_fc_norm_hidden(states)), 1))
        return out


def _before(given: Examples) -> Tensor:
    """[A, T]: which rows an anchor has behind it in its document."""
    places = torch.arange(len(given.tokens), device=given.tokens.device)
    same = given.documents[given.anchors][:, None] == given.documents[None]
    return same & (places[None] < given.anchors[:, None])


def _attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """[rows, heads D] of query [rows, H, D] over key and value [keys, KV, D]."""
    group = query.shape[1] // key.shape[1]
    parts = (query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1))
    # Without the dimension of a batch no fused kernel serves them, and the scores of all rows are
    # written down: gigabytes.
    query, key, value = (part.transpose(0, 1)[None] for part in parts)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=seen[None, None])
    return out[0].transpose(0, 1).flatten(1)
