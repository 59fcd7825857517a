"""Models of a known shape whose weights are drawn, not read: only for measuring speed.

Owns the draw. A shape has no tokenizer, so the configuration of a served worker refuses it
(`config/checks.py`). Must not know the measurement.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from kernels.delta_rule import DeltaWeights
from kernels.experts import DRAWN_TILES, Drawn, ExpertWeights
from kernels.latent import LatentWeights
from kernels.mxfp4 import GROUP, Mxfp4Weight
from workers.engine.load.quantize import StoredFormat
from workers.engine.models.description import (
    Attention,
    DeltaRule,
    Dense,
    Latent,
    Layer,
    ModelDescription,
)
from workers.engine.models.vocabulary import AS_STORED, VocabularyForm, norm_before
from workers.engine.models.weights import (
    ApartNorms,
    LayerWeights,
    ModelWeights,
    SideInputs,
    SideWeights,
)

_BRANCH_GAIN: Final = 2.0
"""Attention averages values and SwiGLU halves what goes through it."""

_KEY_NORM: Final = 2.0**0.5
"""Gain of queries and keys: scores spread by 2, so attention goes to few keys, not to all."""


_E2M1_SPREAD: Final = 2.93
"""Standard deviation of numbers of four random bits."""

_KEPT_ROWS: Final = 256
"""The most rows of a step whose experts are kept, where experts are drawn."""

_DECAYS: Final = (-4.0, 2.0)
"""Logarithms of how fast the heads of a delta rule forget, the first and the last."""


def draw_weights(
    config: ModelDescription,
    device: torch.device,
    dtype: torch.dtype,
    *,
    change: Callable[[LayerWeights], LayerWeights] | None = None,
    vocabulary: VocabularyForm = AS_STORED,
    draws_experts: bool = False,
) -> ModelWeights:
    """Seeded normal weights, made where they stay. Milliseconds on a card.

    They are drawn so that answers can be checked: the first layer makes a state, to which all
    others together add as much again, each 1 / sqrt(2 layers). With equal layers every one would
    turn the sum of those before it around, and 36 of them make 5 % of the logits' spread out of the
    rounding of bfloat16; these make 2.5 %, and one layer without its MLP a tenth.

    `change` is applied to each layer: `weights.quantised` has its products in 8 bits. `vocabulary`
    says how embedding and head are kept. With `draws_experts` routers can draw what they choose
    (`kernels.experts.Drawn`), but do not until they are told.
    """
    draw = _Draw(config, device, dtype, draws_experts=draws_experts)
    layers = []
    for index in range(config.num_layers):
        layer = draw.layer(index)
        layers.append(layer if change is None else change(layer))
    embedding = draw.normal(config.vocab_size, config.hidden_size)
    whole = embedding if config.tied else draw.normal(config.vocab_size, config.hidden_size)
    embedding, head = vocabulary.changed(embedding, whole)
    norm = norm_before(head, draw.norms(config.hidden_size), dtype)
    is_on_host = vocabulary.moves(device)
    return ModelWeights(embedding, tuple(layers), norm, head, is_on_host, draw.sides())


class _Draw:
    """Tensors one after the other. On a pretended device (`kernels.recorder`) nothing is drawn."""

    def __init__(
        self,
        config: ModelDescription,
        device: torch.device,
        dtype: torch.dtype,
        *,
        draws_experts: bool,
    ) -> None:
        self._config = config
        self._drawn = None
        if draws_experts and config.mixtures:
            self._drawn = torch.zeros(1 + DRAWN_TILES, dtype=torch.int32, device=device)
        self._device = device
        self._dtype = dtype
        is_meta = device.type == "meta"
        self._generator = None if is_meta else torch.Generator(device).manual_seed(0)

    def normal(self, *shape: int, gain: float = 1.0) -> Tensor:
        empty = torch.empty(shape, dtype=self._dtype, device=self._device)
        if self._generator is None:
            return empty
        return empty.normal_(0.0, gain * shape[-1] ** -0.5, generator=self._generator)

    def norms(self, *shape: int, value: float = 1.0) -> Tensor:
        kept = torch.float32 if self._config.norm_offset else self._dtype
        return torch.full(shape, value, dtype=kept, device=self._device)

    def layer(self, index: int) -> LayerWeights:
        config = self._config
        described, hidden = config.layers[index], config.hidden_size
        gain = _BRANCH_GAIN * ((2 * config.num_layers) ** -0.5 if index else 1.0)
        # A branch that is normed adds as much as its norm says.
        branch = self.norms(hidden, value=gain) if described.branch_norms else None
        if isinstance(described.mixer, DeltaRule):
            mixed = self._delta(described, described.mixer, gain)
        elif isinstance(described.mixer, Latent):
            mixed = self._latent(described, described.mixer, gain)
        else:
            mixed = self._attention(described, described.mixer, gain)
        return LayerWeights(
            **mixed,
            **self._mlp(described, gain),
            input_norm=self.norms(hidden),
            mixer_out_norm=branch,
            mlp_norm=self.norms(hidden),
            mlp_out_norm=branch,
            side=self._side(described, branch),
            scale=self.norms(1) if described.scaled else None,
        )

    def sides(self) -> SideInputs | None:
        """What makes the side inputs of all layers."""
        config = self._config
        if not (width := config.side_width):
            return None
        return SideInputs(
            self.normal(config.side_vocab, width),
            self.normal(width, config.hidden_size),
            self.norms(config.layers[0].side_width),
        )

    def _side(self, described: Layer, branch: Tensor | None) -> SideWeights | None:
        if not (matrices := self._config.side_matrices(described)):
            return None
        gate, out = [self.normal(*matrix) for matrix in matrices]
        return SideWeights(gate, out, self.norms(gate.shape[1]) if branch is None else branch)

    def _mlp(self, described: Layer, gain: float) -> dict[str, Any]:
        """Experts add up to as much as a dense network, whatever their number and weights."""
        matrices, mlp = self._config.mlp_matrices(described), described.mlp
        gate_up, down = matrices[:2]
        if isinstance(mlp, Dense):
            return {"gate_up": self.normal(*gate_up), "down": self.normal(*down, gain=gain)}
        stack = self._mxfp4 if self._config.stored is StoredFormat.MXFP4 else self.normal
        *_, shared_gate_up, shared_down, router = matrices
        apart = None
        count, hidden, kept = mlp.num_experts, self._config.hidden_size, self._dtype
        experts = ExpertWeights(router=self.normal(*router))
        if mlp.choice_bias:
            bias = torch.zeros(count, dtype=torch.float32, device=self._device)
            experts = experts._replace(choice_bias=bias)
        if mlp.biased:
            router_bias = torch.zeros(count, dtype=kept, device=self._device)
            gate_up_bias = torch.zeros(count, 2 * mlp.width, dtype=kept, device=self._device)
            down_bias = torch.zeros(count, hidden, dtype=kept, device=self._device)
            experts = experts._replace(
                router_bias=router_bias, gate_up_bias=gate_up_bias, down_bias=down_bias
            )
        if mlp.shared_width:
            experts = experts._replace(
                shared_gate_up=self.normal(*shared_gate_up),
                shared_down=self.normal(*shared_down, gain=gain),
            )
        if self._drawn is not None:
            size = _KEPT_ROWS, mlp.routing.num_active
            chosen = torch.zeros(size, dtype=torch.int32, device=self._device)
            experts = experts._replace(drawn=Drawn(self._drawn, chosen))
        if mlp.apart:
            scales = torch.ones(count, dtype=torch.float32, device=self._device)
            experts = experts._replace(scales=scales)
            own = torch.full((hidden,), hidden**-0.5, dtype=torch.float32, device=self._device)
            apart = ApartNorms(own, *(self.norms(hidden) for _ in range(3)))
        # Weights of K experts that add up to 1 make of their sum the K-th part of a square.
        whole = gain * mlp.routing.num_active**0.5
        return {
            "gate_up": stack(*gate_up),
            "down": stack(*down, gain=whole),
            "experts": experts,
            "apart": apart,
        }

    def _mxfp4(self, num_rows: int, depth: int, *, gain: float = 1.0) -> Mxfp4Weight:
        """Random bits, with powers by which they are spread about as `normal` spreads numbers."""
        shape, group = (num_rows, depth // 2), (num_rows, depth // GROUP)
        pairs = torch.empty(shape, dtype=torch.uint8, device=self._device)
        if self._generator is not None:
            pairs.random_(0, 256, generator=self._generator)
        power = 127 + round(math.log2(gain * depth**-0.5 / _E2M1_SPREAD))
        return Mxfp4Weight(pairs, torch.full(group, power, dtype=torch.uint8, device=self._device))

    def _attention(self, described: Layer, mixer: Attention, gain: float) -> dict[str, Any]:
        merged, out, gate = self._config.mixer_matrices(described)
        hidden = self._config.hidden_size
        num_normed = mixer.num_heads
        if not mixer.borrows:
            num_normed += mixer.num_kv_heads * (1 + mixer.value_norms)
        return {
            "qkv": self.normal(*merged),
            "qkv_bias": self.normal(merged[0]) if mixer.qkv_bias else None,
            "qk_norm": self.norms(num_normed, mixer.head_dim, value=_KEY_NORM)
            if mixer.head_norms
            else None,
            # Gates halve what is attended.
            "out": self.normal(*out, gain=gain * (1 + mixer.out_gate)),
            "out_bias": self.normal(hidden) if mixer.out_bias else None,
            "gate": self.normal(*gate) if mixer.out_gate else None,
            "sinks": torch.zeros(mixer.num_heads, dtype=torch.float32, device=self._device)
            if mixer.sinks
            else None,
        }

    def _latent(self, described: Layer, mixer: Latent, gain: float) -> dict[str, Any]:
        merged, out, _, query_up, _ = self._config.mixer_matrices(described)
        heads, rank, has_latent = mixer.num_heads, mixer.rank, mixer.query_rank > 0
        return {
            "qkv": self.normal(*merged),
            "qkv_bias": None,
            "qk_norm": None,
            "out": self.normal(*out, gain=gain),
            "out_bias": None,
            "latent": LatentWeights(
                norm=self.norms(rank),
                key_up=self.normal(heads, mixer.plain_dim, rank, gain=_KEY_NORM),
                value_up=self.normal(heads, mixer.value_dim, rank),
                query_norm=self.norms(mixer.query_rank) if has_latent else None,
                query_up=self.normal(*query_up, gain=_KEY_NORM) if has_latent else None,
            ),
        }

    def _delta(self, described: Layer, mixer: DeltaRule, gain: float) -> dict[str, Any]:
        merged, out, gate = self._config.mixer_matrices(described)
        heads, device = mixer.num_value_heads, self._device
        wide = torch.float32
        return {
            "qkv": self.normal(*merged),
            "qkv_bias": None,
            "qk_norm": None,
            "out": self.normal(*out, gain=gain),
            "out_bias": None,
            "gate": self.normal(*gate),
            "delta": DeltaWeights(
                conv=self.normal(mixer.sizes.columns, mixer.conv_width),
                decay=torch.linspace(*_DECAYS, heads, dtype=wide, device=device),
                dt_bias=torch.ones(heads, dtype=wide, device=device),
                norm=torch.ones(mixer.value_dim, dtype=self._dtype, device=device),
            ),
        }
