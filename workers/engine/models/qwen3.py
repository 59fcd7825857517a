"""The forward pass of a Qwen3 dense model over a flat batch.

Owns the order of operations. Must not know sequences, scheduling or devices: every operation is
an entry of `kernels`, and every tensor lies where the weights lie.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.kv_write import kv_write
from kernels.paged_attention import paged_attention
from kernels.rms_norm import rms_norm
from kernels.rope import rope, rope_angles
from kernels.silu_mul import silu_mul
from workers.engine.batch import Batch
from workers.engine.kv_cache import KvCache
from workers.engine.model_config import Qwen3Config
from workers.engine.weights import LayerWeights, Qwen3Weights


class Qwen3:
    """A loaded network. Call it under `torch.inference_mode`."""

    def __init__(self, config: Qwen3Config, weights: Qwen3Weights) -> None:
        self.config = config
        self.weights = weights
        steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        inverse = 1.0 / config.rope_theta**steps
        self._inverse_frequencies = inverse.to(weights.embedding.device)

    def forward(self, batch: Batch, cache: KvCache) -> Tensor:
        """The last hidden states [T, hidden] after the final norm; writes keys and values."""
        angles = rope_angles(batch.positions, self._inverse_frequencies)
        hidden = F.embedding(batch.token_ids, self.weights.embedding)
        for layer, layer_cache in zip(self.weights.layers, cache.layers, strict=True):
            normed = rms_norm(hidden, layer.input_norm, self.config.rms_norm_eps)
            hidden = hidden + self._attention(layer, normed, batch, layer_cache, angles)
            normed = rms_norm(hidden, layer.post_norm, self.config.rms_norm_eps)
            hidden = hidden + F.linear(silu_mul(F.linear(normed, layer.gate_up)), layer.down)
        return rms_norm(hidden, self.weights.norm, self.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab] float32 of hidden states [rows, hidden]."""
        return F.linear(hidden, self.weights.head).float()

    def _attention(
        self,
        layer: LayerWeights,
        normed: Tensor,
        batch: Batch,
        cache: tuple[Tensor, Tensor],
        angles: tuple[Tensor, Tensor],
    ) -> Tensor:
        num_heads, num_kv = self.config.num_heads, self.config.num_kv_heads
        qkv = F.linear(normed, layer.qkv, layer.qkv_bias)
        heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv, self.config.head_dim)
        # Queries and keys are normed and turned together: one operation each for both.
        query_key = rms_norm(heads[:, :-num_kv], layer.qk_norm, self.config.rms_norm_eps)
        query_key = rope(query_key, *angles)
        keys, values = query_key[:, num_heads:], heads[:, -num_kv:]
        kv_write(keys, values, *cache, batch.slots)
        attended = paged_attention(query_key[:, :num_heads], *cache, batch.attention)
        return F.linear(attended.flatten(1), layer.out, layer.out_bias)
