"""Heads for multi-token prediction, as Qwen3.5 and 3.6 and DeepSeek-V3 have them in their
checkpoints.

Owns the head's mathematics. Must not know how often it is run, nor the names of its tensors.

A row is `fc(norm(embedding), norm(state))` through one layer of the target's kind; its normed
output is what the target's head reads, and the next row's state.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import msgspec
import torch
from torch import Tensor

from kernels.attention import AttentionPlan, PagedPlan
from kernels.linear import linear
from kernels.rms_norm import rms_norm
from workers.engine.drafting.description import MtpShape
from workers.engine.drafting.weights import DraftingHead, own_bytes, ranks_of_head, reading
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.models.weights import ModelWeights, quantised
from workers.engine.parallel.shares import LayerCut, Share, config_of


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """`model` with the target's embedding and head; `fc` [hidden, 2 hidden], of the embedding and
    then of the state, which `embedding_norm` and `state_norm` [hidden] norm before.
    """

    model: ModelWeights
    fc: Tensor
    embedding_norm: Tensor
    state_norm: Tensor


def read_mtp(path: Path, shape: MtpShape, target: Network) -> MtpWeights:
    """The weights in the directory `path`, which may be the target's own. Raises `ConfigError`."""
    hidden, names = shape.network.hidden_size, shape.names
    with reading(path, shape.network, target, names.own) as reader:
        return MtpWeights(
            model=reader.beside_target(names.layers, names.layer, names.norm),
            fc=reader.wide(2 * hidden, (names.fc, hidden)),
            embedding_norm=reader.norm(names.embedding_norm, hidden),
            state_norm=reader.norm(names.state_norm, hidden),
        )


def share_of_mtp(shape: MtpShape, weights: MtpWeights, share: Share) -> tuple[MtpShape, MtpWeights]:
    """The part of an MTP head that one rank computes: its layer is cut like the layers of its
    target. The product that joins embedding and state is whole on each rank. Raises `ConfigError`.
    """
    cut = LayerCut(shape.network, share)
    layers = tuple([cut(layer) for layer in weights.model.layers])
    part = msgspec.structs.replace(shape, network=config_of(shape.network, share))
    return part, replace(weights, model=replace(weights.model, layers=layers))


@final
class MtpCell:
    """See `workers.engine.drafting.recurrent.RecurrentCell`; for sequences of up to `window`
    tokens. If the target has ranks, `shape` and `weights` are this rank's share. With `fp8` the
    layer's products are in 8 bits, and drafts are chosen by a copy of the head in 8 bits: of a
    27B's pass that halves what is read, 3.4 GB.
    """

    def __init__(
        self,
        shape: MtpShape,
        weights: MtpWeights,
        target: Network,
        window: int,
        *,
        fp8: bool = False,
    ) -> None:
        model = weights.model
        self.name = "mtp"
        self.taps: tuple[int, ...] = ()
        self.reads_hidden = True
        self.config = shape.network
        self.like = weights.fc
        self._head = DraftingHead(model, ranks_of_head(model, target), fp8=fp8)
        if fp8:
            model = replace(model, layers=tuple([quantised(layer) for layer in model.layers]))
        others = weights.fc, weights.embedding_norm, weights.state_norm
        self.num_bytes = own_bytes(model, target.weights, *others) + self._head.num_bytes
        self._target = target
        self._weights = weights
        self._network = Network(shape.network, model, window + 1, ranks=target.ranks)

    def first_states(self, kept: Tensor) -> Tensor:
        """See `RecurrentCell`."""
        return self._target.final_norm(kept)

    def run(
        self,
        ids: Tensor,
        states: Tensor,
        plan: AttentionPlan | PagedPlan,
        cache: KvCache,
        rows: Tensor | None,
    ) -> Tensor:
        """See `RecurrentCell`."""
        weights, eps = self._weights, self.config.rms_norm_eps
        embedded = rms_norm(self._network.embed(ids), weights.embedding_norm, eps)
        both = torch.cat((embedded, rms_norm(states, weights.state_norm, eps)), dim=1)
        return self._network.forward(linear(both, weights.fc), plan, cache, rows)

    def next_states(self, out: Tensor) -> Tensor:
        """See `RecurrentCell`."""
        return self._network.final_norm(out)

    def logits(self, out: Tensor) -> Tensor:
        """See `RecurrentCell`."""
        return self._head.logits(out, self.config.rms_norm_eps)

    def token_ids(self, ids: Tensor) -> Tensor:
        """See `RecurrentCell`."""
        return ids
