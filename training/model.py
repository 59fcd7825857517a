"""The trained network: a Qwen3 dense model over a flat batch of documents.

Owns the parameters, named as in published checkpoints, and the loss. Must not know optimizers.
"""

from collections.abc import Iterator
from typing import Final, cast

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor, nn

from training.attention import Attention, DocumentLayout, attend
from training.pack import IGNORED
from training.settings import Shape

_INIT_STD: Final = 0.02


class Norm(nn.Module):
    """RMS norm with a scale, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        return (normed * self.weight).to(x.dtype)


class SelfAttention(nn.Module):
    """Grouped heads; queries and keys are normed, then rotated by their positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        queries, keys = (n * shape.head_dim for n in (shape.num_heads, shape.num_kv_heads))
        self._shape = shape
        self.q_proj = nn.Linear(shape.hidden, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden, bias=False)
        self.q_norm = Norm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = Norm(shape.head_dim, shape.rms_norm_eps)

    def project(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, H, D], keys and values [T, KV, D] of `x` [T, hidden]."""
        merged = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        num_heads, num_kv = self._shape.num_heads, self._shape.num_kv_heads
        size = (*x.shape[:-1], num_heads + 2 * num_kv, self._shape.head_dim)
        heads = F.linear(x, merged).view(size)
        query, key, value = torch.split(heads, [num_heads, num_kv, num_kv], -2)
        return _turn(self.q_norm(query), angles), _turn(self.k_norm(key), angles), value


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        merged = torch.cat([self.gate_proj.weight, self.up_proj.weight])
        gate, up = F.linear(x, merged).chunk(2, -1)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


class TrainedLayer(nn.Module):
    """Attention, then the multi-layer perceptron, each on a normed copy of the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.rms_norm_eps)
        self.self_attn = SelfAttention(shape)
        self.post_attention_layernorm = Norm(shape.hidden, shape.rms_norm_eps)
        self.mlp = Mlp(shape)


class Decoder(nn.Module):
    """Embedding, layers and last norm: `model` in checkpoints."""

    def __init__(self, shape: Shape, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, shape.hidden)
        self.layers = nn.ModuleList(TrainedLayer(shape) for _ in range(shape.num_layers))
        self.norm = Norm(shape.hidden, shape.rms_norm_eps)

    def stack(self) -> list[TrainedLayer]:
        """The layers by their type."""
        return [cast("TrainedLayer", layer) for layer in self.layers]


class Qwen3(nn.Module):
    """The whole network; its head is its embedding."""

    def __init__(self, shape: Shape, vocab_size: int, attention: Attention) -> None:
        super().__init__()
        self.shape = shape
        self.vocab_size = vocab_size
        self.model = Decoder(shape, vocab_size)
        self.attention = attention
        steps = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
        self.register_buffer("_inverse", 1.0 / shape.rope_theta**steps, persistent=False)
        self.apply(self._initialise)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [..., 1, D / 2] of `positions` [...]."""
        assert isinstance(self._inverse, Tensor)
        angle = positions.float()[..., None, None] * self._inverse
        return angle.cos(), angle.sin()

    def forward(
        self, tokens: Tensor, positions: Tensor, layouts: tuple[DocumentLayout, ...]
    ) -> Tensor:
        """The normed last hidden states [T, hidden] of `tokens` [T]."""
        *_, last = self.streams(tokens, positions, layouts)
        out: Tensor = self.model.norm(last)
        return out

    def streams(
        self, tokens: Tensor, positions: Tensor, layouts: tuple[DocumentLayout, ...]
    ) -> Iterator[Tensor]:
        """What leaves each layer, [T, hidden]."""
        angles = self.angles(positions)
        hidden = self.model.embed_tokens(tokens)
        for layer in self.model.stack():
            projected = layer.self_attn.project(layer.input_layernorm(hidden), angles)
            attended = attend(self.attention, *projected, layouts).flatten(1)
            hidden = hidden + layer.self_attn.o_proj(attended)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            yield hidden

    def loss(
        self,
        tokens: Tensor,
        positions: Tensor,
        layouts: tuple[DocumentLayout, ...],
        sources: Tensor,
        targets: Tensor,
        z_loss: float,
    ) -> tuple[Tensor, Tensor]:
        """The minimised loss, and the cross-entropy in it: means over the trained tokens alone.

        `z_loss` is the weight of the squared log of the softmax's sum, which keeps logits small.
        """
        hidden = self(tokens, positions, layouts).index_select(0, sources)
        logits = F.linear(hidden, self.model.embed_tokens.weight).float()
        is_real = (targets != IGNORED).float()
        normaliser = logits.logsumexp(-1)
        chosen = logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        entropy = ((normaliser - chosen) * is_real).sum() / is_real.sum()
        penalty = (normaliser.square() * is_real).sum() / is_real.sum()
        return entropy + z_loss * penalty, entropy.detach()

    def _initialise(self, module: nn.Module) -> None:
        """Normal noise; matrices that add to the residual stream start at zero."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=_INIT_STD)
        if isinstance(module, TrainedLayer):
            nn.init.zeros_(module.self_attn.o_proj.weight)
            nn.init.zeros_(module.mlp.down_proj.weight)


def _turn(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of `x` [..., heads, D], the halves of D forming the pairs."""
    cos, sin = angles
    first, second = x.float().chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)
