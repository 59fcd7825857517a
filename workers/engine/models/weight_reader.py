"""The weights of a checkpoint, read layer by layer into the merged layout (`weights.py`).

Owns which matrices and norms make a layer. `vocabulary.py` has the embedding and the head, the
description the names of tensors. Must not know formats of weights (`matrix_reader.py`) or files.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.delta_rule import DeltaWeights
from kernels.experts import ExpertWeights
from kernels.latent import LatentWeights
from kernels.linear import Weight
from protocol.errors import ConfigError
from workers.engine.load.checkpoint import Checkpoint
from workers.engine.load.file_stream import FileStream
from workers.engine.load.report import Report
from workers.engine.models.description import (
    Attention,
    DeltaRule,
    Dense,
    Experts,
    Latent,
    Layer,
    ModelDescription,
)
from workers.engine.models.matrix_reader import MatrixReader
from workers.engine.models.row_orders import (
    by_kind,
    gates_first,
    in_turned_order,
    interleaved_rows,
    rows_of,
)
from workers.engine.models.tensor_names import (
    EMBEDDING,
    foreign_prefix,
    head_name,
    last_part,
    prefix_of,
)
from workers.engine.models.unread_tensors import check_parts, check_unread
from workers.engine.models.vocabulary import AS_STORED, VocabularyForm, norm_before
from workers.engine.models.weights import (
    ApartNorms,
    LayerWeights,
    ModelWeights,
    SideInputs,
    SideWeights,
    with_narrow_norms,
)


def load_weights(
    model_dir: Path,
    config: ModelDescription,
    device: torch.device,
    dtype: torch.dtype,
    report: Report,
    *,
    change: Callable[[LayerWeights], LayerWeights] | None = None,
    vocabulary: VocabularyForm = AS_STORED,
) -> ModelWeights:
    """Read all weights of `model_dir` to `device` as `dtype`; quantised ones keep their format.

    `change` (`quantised`, `quartered`, `doubled`) is applied layer by layer, so that at most one
    layer exists in a form that is not kept. Embedding and head get their form before the first
    layer is read. Raises `ConfigError` naming the file or tensor that is missing, misshapen or
    unknown.
    """
    stream = FileStream(device) if device.type == "cuda" else None
    with Checkpoint(model_dir, stream) as checkpoint:
        reader = WeightReader(checkpoint, config, device, dtype, report, change)
        weights = reader.all(vocabulary)
        reader.check_nothing_left(model_dir)
    return weights


def _untold(_phase: str, _share: float, _detail: str) -> None:
    """Report nothing: it is told at the end."""


class WeightReader(MatrixReader):
    """Reads layer by layer."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelDescription,
        device: torch.device,
        dtype: torch.dtype,
        report: Report,
        change: Callable[[LayerWeights], LayerWeights] | None,
    ) -> None:
        super().__init__(checkpoint, config, device, dtype, report)
        self._change = change

    def all(self, vocabulary: VocabularyForm) -> ModelWeights:
        """The whole network."""
        config, model_dir = self._config, self._checkpoint.model_dir
        hidden, prefix = config.hidden_size, self._prefix()
        check_parts(self._checkpoint, config, model_dir)
        embedding = self.merged((f"{prefix}{EMBEDDING}", (config.vocab_size, hidden)))
        whole = self._head(embedding, prefix)
        if vocabulary != AS_STORED:
            self.settle()
        embedding, head = vocabulary.changed(embedding, whole)
        del whole  # before the layers need its memory
        layers = self.layers(prefix, checks_first=True)
        sides = self._side_inputs(prefix)
        norm = norm_before(head, self.norm(f"{prefix}norm", hidden), self._dtype)
        self.settle()
        self.report_widened()
        is_on_host = vocabulary.moves(self._device)
        return ModelWeights(embedding, layers, norm, head, is_on_host, sides)

    def _side_inputs(self, prefix: str) -> SideInputs | None:
        """What makes the side inputs of layers, all in 16 bits."""
        config, names = self._config, self._config.names
        if not (width := config.side_width):
            return None
        return SideInputs(
            self.wide(width, (prefix + names.side_embedding, config.side_vocab)),
            self.wide(config.hidden_size, (prefix + names.side_in, width)),
            self.norm(prefix + names.side_in_norm, config.layers[0].side_width),
        )

    def layers(
        self, prefix: str, first: int = 0, *, checks_first: bool = False
    ) -> tuple[LayerWeights, ...]:
        """All layers, whose tensors begin with `prefix`; the names of the first one say `first`.
        With `checks_first` tensors that the first one does not explain end the start there: what is
        in one layer is mostly in all, and they take minutes to read.
        """
        layers = []
        for index, described in enumerate(self._config.layers, first):
            self.report_progress()
            layer = self._layer(f"{prefix}layers.{index}.", described)
            if checks_first and index == first:
                self.check_nothing_left(
                    self._checkpoint.model_dir, f"{prefix}layers.{index}.", is_last=False
                )
            mixer = described.mixer
            is_moved = isinstance(mixer, Attention) and (mixer.is_partial or mixer.out_gate)
            if self._change is not None or is_moved:
                self.settle()
                if isinstance(mixer, Attention) and not isinstance(mixer, Latent):
                    layer = in_turned_order(layer, mixer, self._dtype)
            layer = layer if self._change is None else self._change(layer)
            layers.append(with_narrow_norms(layer, self._dtype))
        return tuple(layers)

    def check_nothing_left(self, model_dir: Path, only: str = "", *, is_last: bool = True) -> None:
        """Refuse unused tensors whose names begin with `only` (`unread_tensors.py`); with `is_last`
        those that are left out are told.
        """
        report = self._report if is_last else _untold
        check_unread(
            self._checkpoint, self._config, self._taken, model_dir, only=only, report=report
        )

    def _head(self, embedding: Tensor, prefix: str) -> Tensor:
        """The embedding, if the model ties them. As in transformers, a head that such a model has
        nevertheless counts unless it is a copy: it was trained apart, or its config is wrong.
        """
        config, names = self._config, self._checkpoint.names
        name = head_name(names, prefix, config.names.head)
        start = f"{name}.weight" if config.tied else f"{name}."
        is_stored = any(each.startswith(start) for each in names)
        if not is_stored and (config.tied or config.embeds):
            return embedding
        if not is_stored:
            raise ConfigError(
                f"{self._checkpoint.model_dir} has no tensor {name}.weight, and its config.json "
                "does not say that the head is the embedding: set tie_word_embeddings = true in it "
                "if the model was trained so, or take a checkpoint with its head"
            )
        head = self.wide(config.hidden_size, (name, config.vocab_size))
        self.settle()
        return embedding if config.tied and torch.equal(head, embedding) else head

    def _prefix(self) -> str:
        """The prefix of the network's names. Raises `ConfigError` for a model that was saved within
        another one.
        """
        names, prefixes = self._checkpoint.names, self._config.names.prefixes
        if (foreign := foreign_prefix(names, prefixes)) is not None:
            raise ConfigError(
                f"{self._checkpoint.model_dir}: the names of its tensors begin with {foreign!r}, "
                "as those of a model that was saved within another one (torch.compile, an adapter, "
                "parallel training): save the inner model, or take that away from the names"
            )
        return prefix_of(names, prefixes)

    def _layer(self, prefix: str, described: Layer) -> LayerWeights:
        names, mixer, hidden = self._config.names, described.mixer, self._config.hidden_size
        if isinstance(mixer, DeltaRule):
            mixed = self._delta(prefix, mixer)
        elif isinstance(mixer, Latent):
            mixed = self._latent(prefix, mixer)
        else:
            mixed = self._attention(prefix, mixer)
        mlp = self._dense if isinstance(described.mlp, Dense) else self._mixture
        return LayerWeights(
            **mixed,
            **mlp(prefix, described),
            input_norm=self.norm(prefix + names.mixer_norm, hidden),
            mixer_out_norm=self._branch_norm(prefix, names.mixer_out_norm, described),
            mlp_norm=self.norm(prefix + names.mlp_norm, hidden),
            mlp_out_norm=self._branch_norm(prefix, names.mlp_out_norm, described),
            side=self._side(prefix, described),
            scale=self.tensor(prefix + names.scale, 1) if described.scaled else None,
        )

    def _side(self, prefix: str, described: Layer) -> SideWeights | None:
        names, hidden = self._config.names, self._config.hidden_size
        if not (width := described.side_width):
            return None
        return SideWeights(
            self.product(hidden, (prefix + names.side_gate, width)),
            self.product(width, (prefix + names.side_out, hidden)),
            self.norm(prefix + names.side_norm, hidden),
        )

    def _dense(self, prefix: str, described: Layer) -> dict[str, Any]:
        """The weights of a layer's dense network."""
        names = self._config.names
        gate_up, down = self._config.mlp_matrices(described)
        share = gate_up[0] // len(names.gate_up)
        return {
            "gate_up": self.product(
                gate_up[1], *((prefix + name, share) for name in names.gate_up)
            ),
            "down": self.product(down[1], (prefix + names.down, down[0])),
        }

    def _attention(self, prefix: str, mixer: Attention) -> dict[str, Any]:
        """The weights of a layer's attention. Output gates are still among the queries' rows."""
        names, hidden = self._config.names, self._config.hidden_size
        query, key, value = mixer.side_rows
        sides = [query * (1 + mixer.out_gate), key, value]
        modules = names.qkv
        if len(modules) == 1:
            sides = [sum(sides)]
        elif mixer.keys_are_values:
            modules = *modules[:2], modules[1]
        qkv = [(prefix + name, rows) for name, rows in zip(modules, sides, strict=True) if rows]
        if mixer.borrows:  # published files may hold what no layer reads
            unread = [f"{prefix}{name}." for name in (*modules[1:], names.k_norm, names.v_norm)]
            self._taken |= {
                each for each in self._checkpoint.names if each.startswith(tuple(unread))
            }
        biases = ((f"{name}.bias", (rows,)) for name, rows in qkv)
        return {
            "qkv": self.product(hidden, *qkv),
            "qkv_bias": self.merged(*biases) if mixer.qkv_bias else None,
            "qk_norm": self._head_norms(prefix, mixer) if mixer.head_norms else None,
            "out": self.product(query, (prefix + names.out, hidden)),
            "out_bias": self.tensor(f"{prefix}{names.out}.bias", hidden)
            if mixer.out_bias
            else None,
            "sinks": self.tensor(prefix + names.sinks, mixer.num_heads, dtype=torch.float32)
            if mixer.sinks
            else None,
        }

    def _latent(self, prefix: str, mixer: Latent) -> dict[str, Any]:
        """The weights of a layer's latent attention."""
        names, hidden, heads = self._config.names, self._config.hidden_size, mixer.num_heads
        first, cached, _ = mixer.side_rows
        maker = names.query_down if mixer.query_rank else names.qkv[0]
        qkv = self.product(hidden, (prefix + maker, first), (prefix + names.latent_down, cached))
        made = heads * (mixer.plain_dim + mixer.value_dim)
        up = self.wide(mixer.rank, (prefix + names.latent_up, made))
        norm = self.norm(prefix + names.latent_norm, mixer.rank)
        query_norm = query_up = None
        if mixer.query_rank:
            query_norm = self.norm(prefix + names.query_norm, mixer.query_rank)
            query_up = self.product(mixer.query_rank, (prefix + names.query_up, mixer.query_rows))
        self.settle()
        if mixer.interleaved:
            queries, tail = interleaved_rows(mixer)
            own = torch.arange(first) if mixer.query_rank else queries
            rows = torch.cat((own, first + tail)).to(self._device)
            qkv = rows_of(qkv, rows, self._dtype)
            if query_up is not None:
                query_up = rows_of(query_up, queries.to(self._device), self._dtype)
        heads_up, plain = up.view(heads, -1, mixer.rank), mixer.plain_dim
        ups = heads_up[:, :plain].contiguous(), heads_up[:, plain:].contiguous()
        return {
            "qkv": qkv,
            "qkv_bias": None,
            "qk_norm": None,
            "out": self.product(mixer.query_size, (prefix + names.out, hidden)),
            "out_bias": None,
            "latent": LatentWeights(norm, *ups, query_norm, query_up),
        }

    def _delta(self, prefix: str, mixer: DeltaRule) -> dict[str, Any]:
        """The weights of a layer's delta rule."""
        hidden = self._config.hidden_size
        sizes, at = mixer.sizes, f"{prefix}{self._config.names.delta}."
        columns, heads, values = sizes.columns, sizes.num_value_heads, sizes.value_columns
        wide = torch.float32
        names = self._config.names
        if len(names.delta_in) == 1:
            qkv = self.product(hidden, (at + names.delta_in[0], columns + values))
            gate = self.wide(hidden, (at + names.delta_gates[0], 2 * heads))
            self.settle()
            of_products, of_gates = by_kind(sizes)
            qkv = rows_of(qkv, of_products.to(self._device), self._dtype)
            gate = gate[of_gates.to(self._device)]
        else:
            sides = zip(names.delta_in, (columns, values), strict=True)
            qkv = self.product(hidden, *((at + name, rows) for name, rows in sides))
            gate = self.wide(hidden, *((at + name, heads) for name in names.delta_gates))
        return {
            "qkv": qkv,
            "qkv_bias": None,
            "qk_norm": None,
            "out": self.product(values, (f"{at}out_proj", hidden)),
            "out_bias": None,
            "gate": gate,
            "delta": DeltaWeights(
                conv=self.tensor(f"{at}conv1d.weight", columns, 1, mixer.conv_width).squeeze(1),
                decay=self.tensor(f"{at}A_log", heads, dtype=wide),
                dt_bias=self.tensor(f"{at}dt_bias", heads, dtype=wide),
                norm=self.tensor(f"{at}norm.weight", mixer.value_dim),
            ),
        }

    def _mixture(self, prefix: str, described: Layer) -> dict[str, Any]:
        """The weights of a layer's mixture. Each expert has tensors of its own, or all are in
        one.
        """
        mlp, names, hidden = described.mlp, self._config.names, self._config.hidden_size
        assert isinstance(mlp, Experts)
        apart = None
        count, at = mlp.num_experts, f"{prefix}{names.experts}."
        if self.is_fused(f"{at}{names.fused_gate_up}"):
            gate_up = self.fused(f"{at}{names.fused_gate_up}", count, 2 * mlp.width, hidden)
            down = self.fused(f"{at}{names.fused_down}", count, hidden, mlp.width)
        else:
            gate_up, down = self._gated([f"{at}{one}." for one in range(count)], mlp.width)
        router = prefix + names.router
        rows = [(router, count)] + [(prefix + names.shared_gate, 1)] * mlp.shared_gate
        experts = ExpertWeights(router=self.wide(hidden, *rows))
        if mlp.choice_bias:
            bias = self.tensor(f"{router}.{names.choice_bias}", count, dtype=torch.float32)
            experts = experts._replace(choice_bias=bias)
        if mlp.shared_width:
            both = self._gated([f"{prefix}{names.shared}."], mlp.shared_width)
            experts = experts._replace(shared_gate_up=both[0], shared_down=both[1])
        if mlp.biased:
            sides = self.tensor(f"{at}{names.fused_gate_up}_bias", count, 2 * mlp.width)
            experts = experts._replace(
                router_bias=self.tensor(f"{router}.bias", count),
                gate_up_bias=sides[:, gates_first(2 * mlp.width)] if names.alternate else sides,
                down_bias=self.tensor(f"{at}{names.fused_down}_bias", count, hidden),
            )
        if mlp.apart:
            scales = self.tensor(prefix + names.expert_scales, count, dtype=torch.float32)
            experts = experts._replace(scales=scales)
            own = self.tensor(prefix + names.router_norm, hidden, dtype=torch.float32)
            apart = ApartNorms(
                own.mul_(hidden**-0.5),
                self.norm(prefix + names.experts_norm, hidden),
                self.norm(prefix + names.experts_out_norm, hidden),
                self.norm(prefix + names.shared_out_norm, hidden),
            )
        return {"gate_up": gate_up, "down": down, "experts": experts, "apart": apart}

    def _gated(self, starts: list[str], width: int) -> tuple[Weight, Weight]:
        """The stacks of gated networks whose modules' names follow one of `starts` each."""
        names, hidden = self._config.names, self._config.hidden_size
        gates, downs = [last_part(name) for name in names.gate_up], last_part(names.down)
        sides = [(start + name, width) for start in starts for name in gates]
        gate_up = self.product(hidden, *sides)
        return gate_up, self.product(width, *((start + downs, hidden) for start in starts))

    def _head_norms(self, prefix: str, mixer: Attention) -> Tensor:
        """One row per head: queries, then keys, then ones for values that are normed."""
        names = self._config.names
        query = self.norm(prefix + names.q_norm, mixer.head_dim)
        parts = [query.expand(mixer.num_heads, -1)]
        if not mixer.borrows:
            key = self.norm(prefix + names.k_norm, mixer.head_dim)
            parts.append(key.expand(mixer.num_kv_heads, -1))
            if mixer.value_norms:
                parts.append(torch.ones_like(parts[-1]))
        return torch.cat(parts)

    def _branch_norm(self, prefix: str, name: str, described: Layer) -> Tensor | None:
        if not described.branch_norms:
            return None
        return self.norm(prefix + name, self._config.hidden_size)

    def norm(self, name: str, size: int) -> Tensor:
        """A norm's weights, with what the family adds to them."""
        offset = self._config.norm_offset
        if not offset:
            return self.tensor(f"{name}.weight", size)
        return self.tensor(f"{name}.weight", size, dtype=torch.float32).add_(offset)
