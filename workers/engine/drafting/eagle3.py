"""EAGLE-3 and 3.1 (SafeAILab/EAGLE): a layer over a mixture of three of the target's states.

Owns the layer's mathematics and the names of its tensors. Must not know how often it is run.

Queries, keys and values are made of the normed embedding and the normed state side by side; the
state itself is what the layer adds to.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from kernels.attention import AttentionPlan, PagedPlan, attend
from kernels.linear import linear, linear_add, norm_swiglu
from kernels.rms_norm import rms_norm
from workers.engine.drafting.description import Eagle3Shape
from workers.engine.drafting.weights import own_bytes, ranks_of_head, reading
from workers.engine.models.angles import cos_sin
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.models.weights import LayerWeights, ModelWeights

_PROBE: Final = "fc.weight"
_LAYERS: Final = ("midlayer.", "layers.0.")


@dataclass(frozen=True, slots=True)
class Eagle3Weights:
    """`model` with one layer, whose `qkv` is [(H + 2 KV) D, 2 hidden] and whose `input_norm` norms
    the embedding; `state_norm` [hidden]; `fc` [hidden, taps x target's hidden]. `ids` int64 of the
    drafted vocabulary, None if that is the target's.
    """

    model: ModelWeights
    state_norm: Tensor
    fc: Tensor
    ids: Tensor | None


def read_eagle3(path: Path, shape: Eagle3Shape, target: Network) -> Eagle3Weights:
    """The weights in the directory `path`. Raises `ConfigError`."""
    config, names = shape.network, shape.network.names
    hidden = config.hidden_size
    (merged, _), out, _, (gates, _), down = config.matrices(config.layers[0])
    heads = config.attention
    key = heads.num_kv_heads * heads.head_dim
    with reading(path, config, target) as reader:
        prefix = reader.prefix(_PROBE)
        layer = next(
            (prefix + each for each in _LAYERS if reader.has(f"{prefix}{each}hidden_norm.weight")),
            prefix + _LAYERS[0],
        )
        sides = zip(names.qkv, (merged - 2 * key, key, key), strict=True)
        layers = LayerWeights(
            input_norm=reader.norm(layer + names.mixer_norm, hidden),
            qkv=reader.product(2 * hidden, *[(layer + name, rows) for name, rows in sides]),
            qkv_bias=None,
            qk_norm=None,
            out=reader.product(out[1], (layer + names.out, hidden)),
            out_bias=None,
            mixer_out_norm=None,
            mlp_norm=reader.norm(layer + names.mlp_norm, hidden),
            gate_up=reader.product(hidden, *[(layer + name, gates // 2) for name in names.gate_up]),
            down=reader.product(down[1], (layer + names.down, hidden)),
            mlp_out_norm=None,
        )
        return Eagle3Weights(
            model=reader.around((layers,), prefix, shape.vocab_size),
            state_norm=reader.norm(f"{layer}hidden_norm", hidden),
            fc=reader.tensor(prefix + _PROBE, hidden, len(shape.taps) * target.config.hidden_size),
            ids=reader.token_ids(shape.vocab_size),
        )


@final
class Eagle3Cell:
    """See `workers.engine.drafting.recurrent.RecurrentCell`; for sequences of up to `window`
    tokens.
    """

    def __init__(
        self, shape: Eagle3Shape, weights: Eagle3Weights, target: Network, window: int
    ) -> None:
        heads = shape.network.attention
        self.name = "eagle3"
        self.reads_hidden = False
        self.config = shape.network
        self.taps = shape.taps
        self.like = weights.fc
        others = weights.state_norm, weights.fc, weights.ids
        self.num_bytes = own_bytes(weights.model, target.weights, *others)
        self._shape = shape
        self._weights = weights
        # For its embedding, norm and head: the layer is computed here.
        ranks = ranks_of_head(weights.model, target)
        self._network = Network(shape.network, weights.model, window + 1, ranks=ranks)
        self._angles = cos_sin(heads.rope, heads.head_dim, window + 1).to(target.device)

    def first_states(self, kept: Tensor) -> Tensor:
        """See `RecurrentCell`."""
        return linear(kept, self._weights.fc)

    def run(
        self,
        ids: Tensor,
        states: Tensor,
        plan: AttentionPlan | PagedPlan,
        cache: KvCache,
        rows: Tensor | None,
    ) -> Tensor:
        """See `RecurrentCell`."""
        layer, eps = self._weights.model.layers[0], self.config.rms_norm_eps
        keys, values = cache.layers[0]
        normed = rms_norm(states, self._weights.state_norm, eps)
        embedded = rms_norm(self._network.embed(ids), layer.input_norm, eps)
        qkv = linear(torch.cat((embedded, normed), dim=1), layer.qkv)
        scale = self.config.attention.scale
        mixed = attend(qkv, None, eps, self._angles, keys, values, plan, scale=scale)
        hidden = normed if self._shape.adds_normed else states
        if rows is not None:
            mixed, hidden = mixed.index_select(0, rows), hidden.index_select(0, rows)
            if not rows.shape[0]:
                return hidden
        hidden = linear_add(mixed, layer.out, hidden)
        gated = norm_swiglu(hidden, layer.mlp_norm, eps, layer.gate_up)
        return linear_add(gated, layer.down, hidden)

    def next_states(self, out: Tensor) -> Tensor:
        """See `RecurrentCell`."""
        return self._network.final_norm(out) if self._shape.feeds_normed else out

    def logits(self, out: Tensor) -> Tensor:
        """See `RecurrentCell`."""
        return self._network.logits(out)

    def token_ids(self, ids: Tensor) -> Tensor:
        """See `RecurrentCell`."""
        return ids if self._weights.ids is None else self._weights.ids[ids]
