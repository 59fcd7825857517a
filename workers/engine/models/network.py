"""The forward pass of a described network over a flat batch.

Owns the order of operations. Must not know families, sequences, scheduling or devices: every
operation is an entry of `kernels`, and every tensor lies where the weights lie.
"""

from copy import copy
from dataclasses import replace
from functools import partial
from itertools import accumulate, count
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.attention import AttentionPlan, PagedPlan, attend, prepared
from kernels.by_rows import by_rows
from kernels.delta_rule import GateProduct, mix, takes_product, verify
from kernels.embed_rows import embed_rows
from kernels.experts import mix as mix_experts
from kernels.experts import norm_route, route, takes_shared
from kernels.latent import LATENT_EPS, LatentWeights
from kernels.latent import attend as attend_latents
from kernels.linear import (
    Weight,
    adds_bias_apart,
    linear,
    linear_add,
    norm_linear,
    norm_swiglu,
)
from kernels.rms_norm import norm_add, rms_norm
from kernels.silu_mul import sigmoid_mul
from workers.engine.models.angles import cos_sin, query_scales
from workers.engine.models.description import (
    Attention,
    Dense,
    Experts,
    Gate,
    Latent,
    ModelDescription,
    Rope,
)
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.state_slots import Place, StateStep
from workers.engine.models.vocabulary import logits
from workers.engine.models.weights import LayerWeights, ModelWeights, SideInputs, SideWeights
from workers.engine.parallel.ranks import Ranks


class Taps(NamedTuple):
    """What a drafter reads of a forward pass: the outputs of these layers, in their order, written
    to `out` [T, layers x hidden]. The last layer may be one of them only in a pass that computes
    all rows.
    """

    layers: tuple[int, ...]
    out: Tensor

    def take(self, index: int, hidden: Tensor) -> None:
        """Keep the output of layer `index`, if it is tapped."""
        if index in self.layers:
            size, place = hidden.shape[1], self.layers.index(index)
            self.out[:, place * size : (place + 1) * size].copy_(hidden)


class _Attention(NamedTuple):
    """What an attention computes with, beside its weights."""

    cos_sin: Tensor
    scale: float
    window: int
    sees_ahead: bool
    query_scales: Tensor | None
    query_size: int
    kind: int
    borrows: bool
    in_window: bool


class Network:
    """A loaded network for sequences of up to `window` tokens; None: the window of its config. Call
    it under `torch.inference_mode`.

    With `invariant`, and plans that are invariant too, a row's result is bit for bit the same
    whatever is computed beside it. With `ranks`, `config` and `weights` are one rank's share
    (`parallel.shares`), and all ranks call this network alike.
    """

    def __init__(
        self,
        config: ModelDescription,
        weights: ModelWeights,
        window: int | None = None,
        *,
        invariant: bool = False,
        ranks: Ranks | None = None,
        place: Place | None = None,
    ) -> None:
        """`place` takes the memory of caches and states; None: as torch does."""
        self.config = config
        self.place = place
        self.invariant = invariant
        self.ranks = ranks
        self.weights = weights
        self.device = weights.embedding.device
        longest = window or config.max_position_embeddings
        turns = dict.fromkeys(_turn(mixer) for mixer in config.attentions)
        angles = {turn: cos_sin(*turn, longest).to(self.device) for turn in turns}
        # What a position turns keys by, of which each position is a multiple.
        self.rotations = tuple([angles[turn][1:2] for turn in turns])
        scales = {rope: query_scales(rope, longest) for rope, _ in turns}
        on_device = {
            rope: None if scale is None else scale.to(self.device) for rope, scale in scales.items()
        }
        kinds = {sizes: kind for kind, sizes in enumerate(config.head_sizes)}
        self._attentions = [
            _Attention(
                cos_sin=angles[_turn(mixer)],
                scale=mixer.scale,
                window=mixer.window,
                sees_ahead=mixer.sees_ahead,
                query_scales=on_device[mixer.rope],
                query_size=mixer.query_size,
                kind=kinds[mixer.sizes],
                borrows=mixer.borrows,
                in_window=mixer.keeps_window,
            )
            if isinstance(mixer, Attention)
            else None
            for mixer in [layer.mixer for layer in config.layers]
        ]
        self._mlps = [layer.mlp for layer in config.layers]
        self._sides = _side_parts(config)
        scale = torch.tensor(config.embedding_scale).to(weights.embedding.dtype)
        self.embedding_scale = float(scale)

    def with_layers(self, chosen: tuple[int, ...]) -> "Network":
        """The network with the `chosen` layers only; it shares everything with this one."""
        fewer = copy(self)
        # This network lives briefly, and memory from `place` is never given back.
        fewer.place = None
        fewer.config = self.config.with_layers(chosen)
        fewer.weights = self.weights.with_layers(chosen)
        # These are members of a copy of this object.
        fewer._attentions = [self._attentions[index] for index in chosen]  # noqa: SLF001
        fewer._mlps = [self._mlps[index] for index in chosen]  # noqa: SLF001
        fewer._sides = [self._sides[index] for index in chosen]  # noqa: SLF001
        kinds = {sizes: kind for kind, sizes in enumerate(fewer.config.head_sizes)}
        for at, index in enumerate(chosen):
            mixer, attention = self.config.layers[index].mixer, self._attentions[index]
            if isinstance(mixer, Attention) and attention is not None:
                fewer._attentions[at] = attention._replace(kind=kinds[mixer.sizes])  # noqa: SLF001
        return fewer

    def embed(self, token_ids: Tensor) -> Tensor:
        """What `forward` starts from, of token ids [T]: hidden states [T, hidden], and behind them,
        where layers have side inputs, what the tokens add to these.
        """
        hidden = F.embedding(token_ids, self.weights.embedding)
        hidden = hidden if self.embedding_scale == 1.0 else hidden.mul_(self.embedding_scale)
        if self.weights.sides is None:
            return hidden
        own = F.embedding(token_ids, self.weights.sides.embedding)
        return torch.cat((hidden, own.mul_(self._side_scale(self.weights.sides))), dim=1)

    def embed_last(self, table_rows: Tensor, last_token: Tensor) -> Tensor:
        """Like `embed`, for the tokens `last_token[table_rows]`; both tensors are int32."""
        weights = self.weights
        hidden = embed_rows(table_rows, last_token, weights.embedding, self.embedding_scale)
        if weights.sides is None:
            return hidden
        scale = self._side_scale(weights.sides)
        own = embed_rows(table_rows, last_token, weights.sides.embedding, scale)
        return torch.cat((hidden, own), dim=1)

    @staticmethod
    def _side_scale(sides: SideInputs) -> float:
        return _rounded(sides.norm.shape[0] ** 0.5, sides.embedding.dtype)

    def prepared(self, plan: PagedPlan, cache: KvCache) -> PagedPlan:
        """`plan` with what the kernels need, ahead of a `forward`."""
        if self.config.is_latent:
            return plan
        dtype, is_scoped = self.weights.embedding.dtype, self.config.is_scoped
        plans = [plan, *(plan.others or [plan] * (len(self.config.head_sizes) - 1))]
        tables = plan.window_tables
        if tables is not None:
            reach = self.config.kept_window
            plans = [
                replace(each, block_tables=tables, reach=reach) if sizes.in_window else each
                for each, sizes in zip(plans, self.config.head_sizes, strict=True)
            ]
        first, *others = [
            prepared(each, sizes.num_heads, cache.keys_of(kind), dtype, is_scoped=is_scoped)
            for kind, (each, sizes) in enumerate(zip(plans, self.config.head_sizes, strict=True))
        ]
        return replace(first, others=tuple(others)) if others else first

    def forward(
        self,
        hidden: Tensor,
        plan: AttentionPlan | PagedPlan,
        cache: KvCache,
        rows: Tensor | None = None,
        taps: Taps | None = None,
        states: StateStep | None = None,
    ) -> Tensor:
        """The last hidden states [T, hidden], before the final norm. Writes keys and values, and
        moves on the `states` of a network with recurrent layers.

        `hidden` is what `embed` makes. With `rows` int64 [S] returns those rows only, [S, hidden].
        Then the last layer computes only keys and values of the other rows; for a long prompt that
        saves 1 / 40 of the products. May overwrite `hidden`.
        """
        last = self.weights.layers[-1]
        hidden, sides = self._split(hidden)
        pages, slots = iter(cache.layers), count()
        for index, layer in enumerate(self.weights.layers):
            attention = self._attentions[index]
            if attention is None:
                assert states is not None
                mixed = self._recurrent(hidden, layer, next(slots), states)
            else:
                mixed = self._attended(hidden, layer, attention, plan, next(pages))
            if layer is last and rows is not None:
                if rows.shape[0] == 0:
                    return hidden[:0]
                mixed, hidden = mixed.index_select(0, rows), hidden.index_select(0, rows)
                sides = None if sides is None else sides.index_select(0, rows)
            bias, later = self._biases(mixed, layer, self._mlps[index])
            hidden = self._added(hidden, mixed, layer.out, bias, layer.mixer_out_norm)
            hidden = self._fed(hidden, layer, self._mlps[index], later)
            if layer.side is not None and sides is not None:
                hidden = self._beside(hidden, layer, layer.side, sides[:, self._sides[index]])
            if taps is not None:
                taps.take(index, hidden)
        return hidden

    def _biases(
        self, mixed: Tensor, layer: LayerWeights, mlp: Dense | Experts
    ) -> tuple[Tensor | None, Tensor | None]:
        """The bias of the product behind `mixed`: added with it, or by the norm of a mixture."""
        bias = layer.out_bias
        if bias is None or self.ranks is not None or layer.mixer_out_norm is not None:
            return bias, None
        is_later = isinstance(mlp, Experts) and not mlp.apart
        if is_later and adds_bias_apart(mixed, layer.out, bias, invariant=self.invariant):
            return None, bias
        return bias, None

    def _fed(
        self, hidden: Tensor, layer: LayerWeights, mlp: Dense | Experts, bias: Tensor | None
    ) -> Tensor:
        """`hidden`, plus the `bias` that a mixture still has to add, plus what the feed-forward
        network makes of it.
        """
        eps, invariant = self.config.rms_norm_eps, self.invariant
        if isinstance(mlp, Experts):
            return self._mixed(hidden, layer, mlp, bias)
        gated = norm_swiglu(
            hidden, layer.mlp_norm, eps, layer.gate_up, is_gelu=mlp.gate is Gate.GELU_TANH,
            invariant=invariant,
        )  # fmt: skip
        scale = layer.scale if layer.side is None else None
        return self._added(hidden, gated, layer.down, None, layer.mlp_out_norm, scale)

    def _split(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Hidden states, and the side inputs of all layers: what the token adds and a normed
        product of its embedding, together.
        """
        sides = self.weights.sides
        if sides is None:
            return hidden, None
        size = self.config.hidden_size
        hidden, own = hidden[:, :size].contiguous(), hidden[:, size:]
        made = linear(hidden, sides.product, None, invariant=self.invariant)
        made = made.mul_(_rounded(size**-0.5, made.dtype))
        parts = made.view(made.shape[0], -1, sides.norm.shape[0])
        normed = rms_norm(parts, sides.norm, self.config.rms_norm_eps).flatten(1)
        return hidden, normed.add_(own).mul_(_rounded(2**-0.5, own.dtype))

    def _beside(
        self, hidden: Tensor, layer: LayerWeights, weights: SideWeights, side: Tensor
    ) -> Tensor:
        """`hidden` plus what the layer makes of its side input [T, width]."""
        gates = linear(hidden, weights.gate, None, invariant=self.invariant)
        gelu = partial(F.gelu, approximate="tanh")
        gated = (by_rows(gelu, gates) if self.invariant else gelu(gates)).mul_(side)
        # Whole on each rank: it is narrow, and a sum would take longer than its products.
        branch = linear(gated, weights.out, None, invariant=self.invariant)
        return norm_add(branch, weights.norm, self.config.rms_norm_eps, hidden, layer.scale)

    def _mixed_apart(self, hidden: Tensor, layer: LayerWeights, mlp: Experts) -> Tensor:
        """A mixture that is `apart`, and the network beside it."""
        eps, invariant, experts = self.config.rms_norm_eps, self.invariant, layer.experts
        norms = layer.apart
        assert experts is not None
        assert norms is not None
        assert experts.shared_gate_up is not None
        assert experts.shared_down is not None
        assert layer.mlp_out_norm is not None
        gated = norm_swiglu(
            hidden, layer.mlp_norm, eps, experts.shared_gate_up,
            is_gelu=mlp.gate is Gate.GELU_TANH, invariant=invariant,
        )  # fmt: skip
        beside = linear(gated, experts.shared_down, None, invariant=invariant)
        routed = route(
            rms_norm(hidden, norms.router, eps), experts, mlp.routing, invariant=invariant
        )
        made = mix_experts(
            rms_norm(hidden, norms.before, eps), layer.gate_up, layer.down, experts, routed,
            mlp.routing, mlp.activation, torch.zeros_like(hidden), invariant=invariant,
        )  # fmt: skip
        if self.ranks is not None:  # both products are summed at once
            beside, made = self.ranks.add(torch.cat((beside, made))).chunk(2)
        beside = rms_norm(beside, norms.behind_shared, eps)
        both = norm_add(made, norms.behind, eps, beside)
        return norm_add(both, layer.mlp_out_norm, eps, hidden, layer.scale)

    def _mixed(
        self, hidden: Tensor, layer: LayerWeights, mlp: Experts, bias: Tensor | None
    ) -> Tensor:
        """A mixture; the shared expert first."""
        if mlp.apart:
            return self._mixed_apart(hidden, layer, mlp)
        eps, invariant, experts = self.config.rms_norm_eps, self.invariant, layer.experts
        assert experts is not None
        normed, routed = norm_route(
            hidden, layer.mlp_norm, eps, experts, mlp.routing, bias, invariant=invariant
        )
        before, hidden = hidden, self._once(hidden)
        given = normed, layer.gate_up, layer.down, experts
        together = takes_shared(*given, mlp.routing, invariant=invariant)
        shared_up, shared_down = experts.shared_gate_up, experts.shared_down
        if shared_up is not None and shared_down is not None and not together:
            gated = norm_swiglu(before, layer.mlp_norm, eps, shared_up, invariant=invariant)
            if routed.shared is not None:
                gated.mul_(routed.shared.unsqueeze(1))  # one launch, rounded once
            hidden = linear_add(gated, shared_down, hidden, invariant=invariant)
        mixed = mix_experts(
            *given, routed, mlp.routing, mlp.activation, hidden, with_shared=together,
            invariant=invariant,
        )  # fmt: skip
        return mixed if self.ranks is None else self.ranks.add(mixed)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab] of last hidden states [rows, hidden], in their dtype."""
        weights, eps = self.weights, self.config.rms_norm_eps
        found = logits(hidden, weights.norm, eps, weights.head, invariant=self.invariant)
        if self.ranks is not None and found.shape[1] != self.config.vocab_size:
            found = self.ranks.joined(found)
        cap = self.config.logit_cap
        return found.div_(cap).tanh_().mul_(cap) if cap else found

    def final_norm(self, hidden: Tensor) -> Tensor:
        """The final norm of last hidden states [rows, hidden], which a head or a pooling reads."""
        return rms_norm(hidden, self.weights.norm, self.config.rms_norm_eps)

    def _attended(
        self,
        hidden: Tensor,
        layer: LayerWeights,
        attention: _Attention,
        plan: AttentionPlan | PagedPlan,
        pages: tuple[Tensor, Tensor],
    ) -> Tensor:
        eps, invariant = self.config.rms_norm_eps, self.invariant
        if layer.latent is not None:
            return self._latent(hidden, layer, layer.latent, attention, plan, pages[0])
        query_scales = attention.query_scales
        if attention.kind and isinstance(plan, PagedPlan) and plan.others:
            plan = plan.others[attention.kind - 1]
        elif attention.in_window and isinstance(plan, AttentionPlan):
            assert plan.window is not None
            plan = plan.window
        qkv = norm_linear(
            hidden, layer.input_norm, eps, layer.qkv, layer.qkv_bias, invariant=invariant
        )
        if query_scales is not None:
            # Before the rotation, which is linear. Rows that pad a step have no position.
            rows = query_scales.index_select(0, plan.positions.clamp_min(0))
            qkv[:, : attention.query_size].mul_(rows)
        mixed = attend(
            qkv, layer.qk_norm, eps, attention.cos_sin, *pages, plan, scale=attention.scale,
            window=attention.window, sees_ahead=attention.sees_ahead, sinks=layer.sinks,
            borrows=attention.borrows,
        )  # fmt: skip
        if layer.gate is None:
            return mixed
        gates = norm_linear(hidden, layer.input_norm, eps, layer.gate, invariant=invariant)
        return sigmoid_mul(mixed, gates)

    def _latent(
        self,
        hidden: Tensor,
        layer: LayerWeights,
        weights: LatentWeights,
        attention: _Attention,
        plan: AttentionPlan | PagedPlan,
        cache: Tensor,
    ) -> Tensor:
        made = norm_linear(
            hidden, layer.input_norm, self.config.rms_norm_eps, layer.qkv, layer.qkv_bias,
            invariant=self.invariant,
        )  # fmt: skip
        first = made.shape[1] - cache.shape[3]
        queries, rows = made[:, :first].contiguous(), made[:, first:]
        if weights.query_up is not None and weights.query_norm is not None:
            queries = norm_linear(
                queries, weights.query_norm, LATENT_EPS, weights.query_up, invariant=self.invariant
            )
        return attend_latents(
            queries, rows, weights, attention.cos_sin, cache, plan, scale=attention.scale
        )

    def _recurrent(
        self, hidden: Tensor, layer: LayerWeights, index: int, step: StateStep
    ) -> Tensor:
        """A recurrent layer; `index` counts the layers that have states."""
        eps, state = self.config.rms_norm_eps, step.states.layers[index]
        assert layer.delta is not None
        assert layer.gate is not None
        rows = norm_linear(hidden, layer.input_norm, eps, layer.qkv)
        if step.verified is None and takes_product(rows, step.plan):
            assert isinstance(layer.gate, Tensor)
            product = GateProduct(hidden, layer.input_norm, eps, layer.gate)
            return mix(rows, product, layer.delta, eps, state, step.plan)
        gates = norm_linear(hidden, layer.input_norm, eps, layer.gate)
        given = rows, gates, layer.delta, eps, state
        if step.verified is None:
            mixed = mix(*given, step.plan)
        else:
            rings, taken = step.verified
            mixed = verify(*given, rings[index], taken, step.plan)
        for stop in step.stops:
            step.keep(index, stop)
            part = stop.rows
            mixed[part] = mix(rows[part], gates[part], layer.delta, eps, state, stop.plan)
        return mixed

    def _added(
        self,
        hidden: Tensor,
        x: Tensor,
        weight: Weight,
        bias: Tensor | None,
        norm: Tensor | None,
        scale: Tensor | None = None,
    ) -> Tensor:
        """`hidden` plus the product of x, which is normed first if there is a `norm`; where the
        layer ends there may be a `scale` of its result, behind a norm.
        """
        ranks, invariant = self.ranks, self.invariant
        if norm is None and ranks is None:
            return linear_add(x, weight, hidden, bias, invariant=invariant)
        branch = linear(x, weight, bias, invariant=invariant)
        if ranks is not None:
            branch = ranks.add(branch, hidden if norm is None else None)
        return (
            branch
            if norm is None
            else norm_add(branch, norm, self.config.rms_norm_eps, hidden, scale)
        )

    def _once(self, residual: Tensor) -> Tensor:
        """The summand to which this rank adds its part of a product: the residual at the first
        rank, else 0.
        """
        if self.ranks is None or self.ranks.share.is_first:
            return residual
        return torch.zeros_like(residual)


def _turn(mixer: Attention) -> tuple[Rope, int]:
    """The rotation of an attention, and the number of dimensions of the vectors that it turns."""
    return mixer.rope, mixer.rope.dim if isinstance(mixer, Latent) else mixer.head_dim


def _side_parts(config: ModelDescription) -> list[slice]:
    """Where each layer's numbers are in a row of side inputs."""
    ends = list(accumulate([layer.side_width for layer in config.layers]))
    return [
        slice(end - layer.side_width, end) for end, layer in zip(ends, config.layers, strict=True)
    ]


def _rounded(factor: float, dtype: torch.dtype) -> float:
    """The factor rounded to the dtype of the rows, as in the reference."""
    return float(torch.tensor(factor).to(dtype))
