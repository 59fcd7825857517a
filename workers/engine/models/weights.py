"""The weights of a network, merged as the forward pass needs them, and their narrower forms.

Owns the merged layout (one matrix for q, k and v, one for gate and up, one for all experts) and the
choice of matrices that may be in 8 or 4 bits: the products of a layer, never norms. Must not know
checkpoints (`weight_reader.py`), nor how weights are used.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.delta_rule import DeltaWeights
from kernels.experts import ExpertWeights
from kernels.fp8 import DualWeight, Fp8Weight, quantize_blocks, quantize_weight
from kernels.int4 import GROUPS, Int4Weight, quantize
from kernels.latent import LatentWeights
from kernels.linear import Weight


class ApartNorms(NamedTuple):
    """Norms [hidden] around a mixture that is `apart`: before the router, float32, before experts,
    behind them, and behind the shared one. `mlp_norm` is before the shared one.
    """

    router: Tensor
    before: Tensor
    behind: Tensor
    behind_shared: Tensor


class SideWeights(NamedTuple):
    """What a layer makes of its side input: gates [width, hidden], `out` [hidden, width] and the
    norm behind it.
    """

    gate: Weight
    out: Weight
    norm: Tensor


class SideInputs(NamedTuple):
    """What makes the side inputs of all layers, N numbers together: an embedding [vocab, N], a
    product [N, hidden] of the embedded token, and the norm of each layer's part of it.
    """

    embedding: Tensor
    product: Tensor
    norm: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; H query heads, KV key heads, D dimensions each, I inner width.

    `qkv` [(H + 2 KV) D, hidden], `out` [hidden, H D], `gate_up` [2 I, hidden] and `down`
    [hidden, I] may be in 8 or 4 bits. `qk_norm` [H + KV, D] has one row per head. Biases, head
    norms and the norms of branches are None unless the model has them. Norms that are stored with
    an offset are float32: in 16 bits small weights would be lost beside the offset.

    In a mixture `gate_up` and `down` are the stacks of all experts (`kernels.experts`), and what
    else it has is in `experts`.

    `gate` [H D, hidden] makes attention's output gates. A layer of the delta rule has `delta`; its
    `qkv` also has the rows of z, and its `gate` [2 HV, hidden], of b and a, is never quantised,
    because a row's gates affect all later rows. `sinks` float32 [H] are scores of heads.

    A layer that borrows keys has queries alone in `qkv`; where values are normed `qk_norm` has rows
    for their heads too. `apart` are the norms of a mixture that is so. `side` makes something of
    the side input. `scale` [1] multiplies the layer's result. Latent attention has `latent`; its
    `qkv` makes queries, or their latents, and behind them what is cached.
    """

    input_norm: Tensor
    qkv: Weight
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    out: Weight
    out_bias: Tensor | None
    mixer_out_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Weight
    down: Weight
    mlp_out_norm: Tensor | None
    gate: Weight | None = None
    delta: DeltaWeights | None = None
    experts: ExpertWeights | None = None
    sinks: Tensor | None = None
    apart: ApartNorms | None = None
    side: SideWeights | None = None
    scale: Tensor | None = None
    latent: LatentWeights | None = None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The whole network. `head` is `embedding` itself if the model ties them and nothing narrows
    it. With `is_on_host` the embedding takes no memory of the network's device.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Weight
    is_on_host: bool = False
    sides: SideInputs | None = None

    def num_bytes(self) -> int:
        """Bytes of all weights on the device; a tied head counts once."""
        total = sum(t.nbytes for t in {id(t): t for t in self._tensors()}.values())
        return total - self.host_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes of the weights in the host's memory, beside a card's."""
        return self.embedding.nbytes if self.is_on_host else 0

    @property
    def is_fp8(self) -> bool:
        """Whether any product of a layer is in 8 bits."""
        return any(isinstance(weight, Fp8Weight) for weight in self._of_layers())

    @property
    def is_int4(self) -> bool:
        """Whether any product of a layer is in 4 bits."""
        return any(isinstance(weight, Int4Weight) for weight in self._of_layers())

    @property
    def has_int4(self) -> bool:
        """Whether any product is in 4 bits, that of the head included."""
        return self.is_int4 or isinstance(self.head, Int4Weight)

    def with_layers(self, chosen: Iterable[int]) -> "ModelWeights":
        """The weights of the `chosen` layers only; all else is shared."""
        return replace(self, layers=tuple([self.layers[index] for index in chosen]))

    @property
    def prefill_bytes(self) -> int:
        """Bytes of the second forms in 8 bits, which `prefill = "fp8"` keeps for many rows."""
        weights = [weight for weight in self._tensors() if isinstance(weight, DualWeight)]
        return sum([weight.fp8.nbytes for weight in weights])

    def _tensors(self) -> Iterator[Weight]:
        yield from (self.embedding, self.norm, self.head)
        yield from self.sides or ()
        yield from self._of_layers()

    def _of_layers(self) -> Iterator[Weight]:
        for layer in self.layers:
            for name in LayerWeights.__slots__:
                found = getattr(layer, name)
                if isinstance(found, DeltaWeights | ApartNorms | SideWeights):
                    yield from found
                elif isinstance(found, ExpertWeights):
                    yield from found.tensors()
                elif isinstance(found, LatentWeights):
                    yield from (each for each in found if each is not None)
                elif found is not None:
                    yield found


def quantised(layer: LayerWeights) -> LayerWeights:
    """The layer with its products in 8 bits, scaled by row. Three mantissa bits change a weight by
    at most 2^-4 of itself; `kernels.fp8` has the rule.
    """
    return _narrowed(layer, _quantised)


def blocked(layer: LayerWeights) -> LayerWeights:
    """The layer with its products in 8 bits, scaled by block."""
    return _narrowed(layer, _blocked)


def quartered(layer: LayerWeights) -> LayerWeights:
    """The layer with its products in 4 bits where a group divides their columns."""
    return _narrowed(layer, _quartered)


def _narrowed(layer: LayerWeights, change: Callable[[Weight], Weight]) -> LayerWeights:
    dtype = layer.gate_up.dtype if isinstance(layer.gate_up, Tensor) else None
    changed = with_products(layer, change)
    return changed if dtype is None else with_narrow_norms(changed, dtype)


def with_narrow_norms(layer: LayerWeights, dtype: torch.dtype) -> LayerWeights:
    """The layer with the norms before products in 4 or 8 bits rounded to the dtype of x. Norms of
    `1 + w` are float32 before. So they would need kernels of their own in 4 bits, 145 in a step of
    Qwen3.6-27B; in 8 bits a program of a product would read as many bytes of norms as of weights.
    The rounding changes a column by at most 2^-9 of itself, where 8 bits change a weight by 2^-4.
    """
    experts = layer.experts
    behind = layer.gate_up if experts is None else experts.shared_gate_up
    return replace(
        layer,
        input_norm=_narrow(layer.input_norm, layer.qkv, dtype),
        mlp_norm=_narrow(layer.mlp_norm, behind, dtype),
    )


def _narrow(norm: Tensor, weight: Weight | None, dtype: torch.dtype) -> Tensor:
    return norm.to(dtype) if isinstance(weight, Int4Weight | Fp8Weight) else norm


def doubled(layer: LayerWeights) -> LayerWeights:
    """The layer with its products in both forms, in 16 bits and in 8 bits for many rows. A product
    that is quantised already stays as it is, and so do experts, most of which few rows choose.
    """
    changed = with_products(layer, _doubled)
    if layer.experts is None:
        return changed
    return replace(changed, gate_up=layer.gate_up, down=layer.down)


def with_products(layer: LayerWeights, change: Callable[[Weight], Weight]) -> LayerWeights:
    """The layer with each of its products changed, one after the other. Routers stay: a row's
    choice affects all behind it.
    """
    return replace(
        layer,
        qkv=change(layer.qkv),
        out=change(layer.out),
        gate_up=change(layer.gate_up),
        down=change(layer.down),
        gate=layer.gate if layer.gate is None or layer.delta else change(layer.gate),
        experts=_with_shared(layer.experts, change),
        side=_with_side(layer.side, change),
        latent=_with_latent(layer.latent, change),
    )


def _with_shared(
    experts: ExpertWeights | None, change: Callable[[Weight], Weight]
) -> ExpertWeights | None:
    if experts is None or experts.shared_gate_up is None or experts.shared_down is None:
        return experts
    return experts._replace(
        shared_gate_up=change(experts.shared_gate_up), shared_down=change(experts.shared_down)
    )


def _with_latent(
    latent: LatentWeights | None, change: Callable[[Weight], Weight]
) -> LatentWeights | None:
    if latent is None or latent.query_up is None:
        return latent
    return latent._replace(query_up=change(latent.query_up))


def _with_side(side: SideWeights | None, change: Callable[[Weight], Weight]) -> SideWeights | None:
    if side is None:
        return None
    return side._replace(gate=change(side.gate), out=change(side.out))


def _quantised(weight: Weight) -> Weight:
    return quantize_weight(weight) if isinstance(weight, Tensor) else weight


def _blocked(weight: Weight) -> Weight:
    return quantize_blocks(weight) if isinstance(weight, Tensor) else weight


def _quartered(weight: Weight) -> Weight:
    if not isinstance(weight, Tensor) or weight.shape[1] % GROUPS[-1]:
        return weight
    return quantize(weight)


def _doubled(weight: Weight) -> Weight:
    return DualWeight(weight, quantize_weight(weight)) if isinstance(weight, Tensor) else weight
