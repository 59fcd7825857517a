"""Drafters as their papers define them: no cache, no merged matrices, one row after another.

Every call computes all from the taps of the whole sequence. float64, to be right where the engine
rounds.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Weights = Mapping[str, Tensor]


class Naive:
    """One drafter's configuration, weights, and the target's embedding and head."""

    def __init__(
        self, config: dict[str, Any], weights: Weights, embedding: Tensor, head: Tensor
    ) -> None:
        self.config = config
        self.weights = {name: tensor.double() for name, tensor in weights.items()}
        self.embedding, self.head = embedding.double(), head.double()

    def norm(self, x: Tensor, name: str) -> Tensor:
        eps = self.config["rms_norm_eps"]
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * self.weights[name]

    def heads(self, x: Tensor, name: str, positions: Tensor | None, norm: str = "") -> Tensor:
        """[rows, heads, D] of a projection, normed and turned."""
        dim = self.config["head_dim"]
        out = (x @ self.weights[name].T).view(x.shape[0], -1, dim)
        if norm in self.weights:
            out = self.norm(out, norm)
        if positions is None:
            return out
        steps = torch.arange(0, dim, 2, dtype=torch.float64) / dim
        angle = positions.double()[:, None] / self.config["rope_theta"] ** steps
        cos, sin = (torch.cat((f, f), 1)[:, None] for f in (angle.cos(), angle.sin()))
        first, second = out.chunk(2, -1)
        return out * cos + torch.cat((-second, first), -1) * sin

    def attention(self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        """[rows, heads D] of rows that see the keys of `seen` bool [rows, keys]."""
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = torch.einsum("thd,shd->hts", query, key) * self.config["head_dim"] ** -0.5
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hts,shd->thd", weights, value).flatten(1)

    def mlp(self, x: Tensor, prefix: str) -> Tensor:
        gate, up = (x @ self.weights[f"{prefix}mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        down: Tensor = (F.silu(gate) * up) @ self.weights[f"{prefix}mlp.down_proj.weight"].T
        return down


class NaiveDFlash(Naive):
    """z-lab's loop; with convolutions and a selector where the configuration has them."""

    def draft(self, taps: Tensor, anchor: int, depth: int) -> tuple[list[int], Tensor]:
        """Drafts and the logits [depth, vocabulary] behind them; `taps` [tokens, n hidden]."""
        own, start = self.config["dflash_config"], taps.shape[0]
        rows = depth + (not own.get("sample_from_anchor", False))
        context = self.norm(taps.double() @ self.weights["fc.weight"].T, "hidden_norm.weight")
        x = self.embedding[[anchor] + [own["mask_token_id"]] * (rows - 1)]
        places = torch.arange(start + rows)
        for index, kind in enumerate(self.config["layer_types"]):
            prefix = f"layers.{index}."
            mix = partial(self.mixed, context=context, places=places, prefix=prefix, kind=kind)
            x = self.branch(x, prefix, "input_layernorm", "attention_conv", mix)
            mlp = partial(self.mlp, prefix=prefix)
            x = self.branch(x, prefix, "post_attention_layernorm", "mlp_conv", mlp)
        states = self.norm(x, "norm.weight")[-depth:]
        logits = states @ self.head.T
        if "selector_rank" in own:
            return self.walk(states, logits, anchor, own["selector_top_k"]), logits
        return logits.argmax(-1).tolist(), logits

    def mixed(self, h: Tensor, context: Tensor, places: Tensor, prefix: str, kind: str) -> Tensor:
        names = {side: f"{prefix}self_attn.{side}_proj.weight" for side in "qkvo"}
        norms = {side: f"{prefix}self_attn.{side}_norm.weight" for side in "qk"}
        start = context.shape[0]
        query = self.heads(h, names["q"], places[start:], norms["q"])
        key = self.heads(torch.cat((context, h)), names["k"], places, norms["k"])
        value = self.heads(torch.cat((context, h)), names["v"], None)
        seen = torch.ones(h.shape[0], len(places), dtype=torch.bool)
        if self.config.get("is_causal"):
            seen = places[None] <= places[start:, None]
        if kind == "sliding_attention":
            window = self.config["sliding_window"]
            own = places[start:, None]
            seen = (places[None] <= own) & (places[None] >= own - (window - 1))
        return self.attention(query, key, value, seen) @ self.weights[names["o"]].T

    def branch(self, x: Tensor, prefix: str, norm: str, conv: str, inner: Any) -> Tensor:
        h = self.norm(x, f"{prefix}{norm}.weight")
        if f"{prefix}{conv}.base_kernel" not in self.weights:
            return x + inner(h)
        base = self.weights[f"{prefix}{conv}.base_kernel"]
        size, groups = base.shape[1], x.shape[1] // self.config["dflash_config"]["conv_group_size"]
        given = h @ self.weights[f"{prefix}{conv}.kernel_projection.weight"].T
        coeff = given.view(len(x), 2, size, groups)

        def conv_of(side: int, y: Tensor) -> Tensor:
            out = torch.zeros_like(y)
            for i in range(len(y)):
                for c in range(y.shape[1]):
                    for t in range(min(size, i + 1)):
                        group = c // (y.shape[1] // groups)
                        out[i, c] += (base[side, t, c] + coeff[i, side, t, group]) * y[i - t, c]
            return out

        return x + conv_of(1, inner(conv_of(0, h)))

    def walk(self, states: Tensor, logits: Tensor, anchor: int, top_k: int) -> list[int]:
        parts = {
            name: self.weights[f"candidate_selector.{name}.weight"]
            for name in ("predecessor_codebook", "successor_codebook", "hidden_projection")
        }
        before, chosen = anchor, []
        for state, row in zip(states, logits, strict=True):
            unary, candidates = row.topk(top_k)
            query = parts["predecessor_codebook"][before] * (parts["hidden_projection"] @ state)
            scores = unary + parts["successor_codebook"][candidates] @ query
            before = int(candidates[scores.argmax()])
            chosen.append(before)
        return chosen


class NaiveRecurrent(Naive):
    """MTP and EAGLE-3: one row after another over all that came before."""

    prefix = ""
    norms: tuple[str, str] = ("", "")

    def layer(self, inputs: Tensor, residual: Tensor) -> Tensor:
        """Outputs [rows, hidden] of all rows, causally."""
        names = {side: f"{self.prefix}self_attn.{side}_proj.weight" for side in "qkvo"}
        places = torch.arange(len(inputs))
        query = self.heads(inputs, names["q"], places, f"{self.prefix}self_attn.q_norm.weight")
        key = self.heads(inputs, names["k"], places, f"{self.prefix}self_attn.k_norm.weight")
        value = self.heads(inputs, names["v"], None)
        seen = places[None] <= places[:, None]
        x = residual + self.attention(query, key, value, seen) @ self.weights[names["o"]].T
        return x + self.mlp(
            self.norm(x, f"{self.prefix}post_attention_layernorm.weight"), self.prefix
        )

    def draft(self, states: Tensor, next_ids: list[int], depth: int) -> tuple[list[int], Tensor]:
        """Drafts and logits; `states` of the target [tokens, ...] and the token behind each."""
        given, ids = self.first(states.double()), list(next_ids)
        chosen, logits = [], []
        for _ in range(depth):
            out = self.run(self.embedding[ids], given)[-1:]
            row = self.norm(out, self.final) @ self.head.T
            logits.append(row[0])
            chosen.append(self.token(int(row.argmax())))
            ids.append(chosen[-1])
            given = torch.cat((given, self.following(out)))
        return chosen, torch.stack(logits)

    final = ""

    def first(self, states: Tensor) -> Tensor:
        raise NotImplementedError

    def run(self, embedded: Tensor, states: Tensor) -> Tensor:
        raise NotImplementedError

    def following(self, out: Tensor) -> Tensor:
        raise NotImplementedError

    def token(self, best: int) -> int:
        return best


class NaiveMtp(NaiveRecurrent):
    """An MTP head, whose states are those behind the target's last norm."""

    prefix = "mtp.layers.0."
    final = "mtp.norm.weight"

    def first(self, states: Tensor) -> Tensor:
        return states

    def run(self, embedded: Tensor, states: Tensor) -> Tensor:
        both = (
            self.norm(embedded, "mtp.pre_fc_norm_embedding.weight"),
            self.norm(states, "mtp.pre_fc_norm_hidden.weight"),
        )
        x = torch.cat(both, 1) @ self.weights["mtp.fc.weight"].T
        return self.layer(self.norm(x, f"{self.prefix}input_layernorm.weight"), x)

    def following(self, out: Tensor) -> Tensor:
        return self.norm(out, self.final)


class NaiveGatedMtp(NaiveMtp):
    """The MTP head of Qwen3.5: norms of 1 + w, a quarter of each head turned, and what is attended
    is gated.
    """

    share = 0.25

    def norm(self, x: Tensor, name: str) -> Tensor:
        eps = self.config["rms_norm_eps"]
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (1 + self.weights[name])

    def layer(self, inputs: Tensor, residual: Tensor) -> Tensor:
        names = {side: f"{self.prefix}self_attn.{side}_proj.weight" for side in "qkvo"}
        norms = {side: f"{self.prefix}self_attn.{side}_norm.weight" for side in "qk"}
        places, dim = torch.arange(len(inputs)), self.config["head_dim"]
        both = (inputs @ self.weights[names["q"]].T).view(len(inputs), -1, 2, dim)
        query = self.turned(self.norm(both[:, :, 0], norms["q"]), places)
        key = (inputs @ self.weights[names["k"]].T).view(len(inputs), -1, dim)
        key = self.turned(self.norm(key, norms["k"]), places)
        value = self.heads(inputs, names["v"], None)
        seen = places[None] <= places[:, None]
        attended = self.attention(query, key, value, seen) * both[:, :, 1].flatten(1).sigmoid()
        x = residual + attended @ self.weights[names["o"]].T
        normed = self.norm(x, f"{self.prefix}post_attention_layernorm.weight")
        return x + self.mlp(normed, self.prefix)

    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        size = int(x.shape[-1] * self.share)
        part, rest = x[..., :size], x[..., size:]
        steps = torch.arange(0, size, 2, dtype=torch.float64) / size
        angle = positions.double()[:, None] / self.config["rope_theta"] ** steps
        cos, sin = (torch.cat((f, f), 1)[:, None] for f in (angle.cos(), angle.sin()))
        first, second = part.chunk(2, -1)
        return torch.cat((part * cos + torch.cat((-second, first), -1) * sin, rest), -1)


class NaiveMixedMtp(NaiveGatedMtp):
    """With a mixture of experts and a shared one: one row and one expert after the other."""

    def mlp(self, x: Tensor, prefix: str) -> Tensor:
        at, rows = f"{prefix}mlp.", []
        for row in x:
            scores = (self.weights[f"{at}gate.weight"] @ row).softmax(0)
            best, chosen = scores.topk(self.config["num_experts_per_tok"])
            share = (self.weights[f"{at}shared_expert_gate.weight"] @ row).sigmoid()
            out = share * self.expert(row, f"{at}shared_expert.")
            for weight, index in zip(best / best.sum(), chosen.tolist(), strict=True):
                out = out + weight * self.expert(row, f"{at}experts.{index}.")
            rows.append(out)
        return torch.stack(rows)

    def expert(self, row: Tensor, at: str) -> Tensor:
        gate, up, down = (self.weights[f"{at}{n}_proj.weight"] for n in ("gate", "up", "down"))
        out: Tensor = down @ (F.silu(gate @ row) * (up @ row))
        return out


class NaiveEagle3(NaiveRecurrent):
    """EAGLE-3, whose states are taps of three layers."""

    prefix = "midlayer."
    final = "norm.weight"

    def first(self, states: Tensor) -> Tensor:
        return states @ self.weights["fc.weight"].T

    def run(self, embedded: Tensor, states: Tensor) -> Tensor:
        normed = self.norm(states, "midlayer.hidden_norm.weight")
        both = self.norm(embedded, "midlayer.input_layernorm.weight"), normed
        residual = normed if self.config.get("norm_before_residual") else states
        return self.layer(torch.cat(both, 1), residual)

    def following(self, out: Tensor) -> Tensor:
        return self.norm(out, self.final) if self.config.get("norm_output") else out

    def token(self, best: int) -> int:
        return best + int(self.weights["d2t"][best])
