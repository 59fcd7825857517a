"""The forward pass of a Qwen3 dense model over a flat batch.

Owns the order of operations. Must not know sequences, scheduling or devices: every operation is
an entry of `kernels`, and every tensor lies where the weights lie.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.attention import AttentionPlan, PagedPlan, attend, prepared, rope_angles
from kernels.linear import linear_add, norm_linear, norm_swiglu
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.model_config import Qwen3Config
from workers.engine.models.weights import Qwen3Weights


class Qwen3:
    """A loaded network. Call it under `torch.inference_mode`.

    With `invariant` a row's result is bit for bit the same whatever is computed beside it, of plans
    that are invariant too.
    """

    def __init__(
        self, config: Qwen3Config, weights: Qwen3Weights, *, invariant: bool = False
    ) -> None:
        self.config = config
        self.invariant = invariant
        self.weights = weights
        self.device = weights.embedding.device
        steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        inverse = 1.0 / config.rope_theta**steps
        angles = rope_angles(torch.arange(config.max_position_embeddings), inverse)
        self._cos_sin = torch.cat(angles, dim=1).to(self.device)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Hidden states [T, hidden] of token ids [T]."""
        return F.embedding(token_ids, self.weights.embedding)

    def prepared(self, plan: PagedPlan, cache: KvCache) -> PagedPlan:
        """`plan` with what the kernels need, ahead of a `forward`."""
        keys, _ = cache.layers[0]
        return prepared(plan, self.config.num_heads, keys, self.weights.embedding.dtype)

    def forward(
        self,
        hidden: Tensor,
        plan: AttentionPlan | PagedPlan,
        cache: KvCache,
        rows: Tensor | None = None,
    ) -> Tensor:
        """The last hidden states [T, hidden], before the final norm; writes keys and values.

        With `rows` int64 [S], those of these rows only: [S, hidden]. The last layer computes only
        keys and values of the other rows, which nothing reads: of a long prompt that saves 1 / 40
        of the products. May overwrite `hidden`.
        """
        eps, invariant = self.config.rms_norm_eps, self.invariant
        last = self.weights.layers[-1]
        for layer, (keys, values) in zip(self.weights.layers, cache.layers, strict=True):
            qkv = norm_linear(
                hidden, layer.input_norm, eps, layer.qkv, layer.qkv_bias, invariant=invariant
            )
            mixed = attend(qkv, layer.qk_norm, eps, self._cos_sin, keys, values, plan)
            if layer is last and rows is not None:
                if rows.shape[0] == 0:
                    return hidden[:0]
                mixed, hidden = mixed.index_select(0, rows), hidden.index_select(0, rows)
            hidden = linear_add(mixed, layer.out, hidden, layer.out_bias, invariant=invariant)
            gated = norm_swiglu(hidden, layer.post_norm, eps, layer.gate_up, invariant=invariant)
            hidden = linear_add(gated, layer.down, hidden, invariant=invariant)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab] of last hidden states [rows, hidden], in their dtype."""
        weights, eps = self.weights, self.config.rms_norm_eps
        return norm_linear(hidden, weights.norm, eps, weights.head, invariant=self.invariant)
