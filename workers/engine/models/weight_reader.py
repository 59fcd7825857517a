"""The weights of a checkpoint, read layer by layer into the merged layout (`weights.py`).

Owns which tensors make a matrix, in every format of a checkpoint. `vocabulary.py` has the embedding
and the head, the description the names of tensors. Must not know files (`checkpoint.py`).
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from housekeeping.sizes import bytes_text
from kernels.delta_rule import DeltaWeights
from kernels.experts import ExpertWeights
from kernels.fp8 import BLOCK, FP8, Fp8Weight
from kernels.int4 import Int4Weight
from kernels.latent import LatentWeights
from kernels.linear import Weight
from kernels.mxfp4 import GROUP, Mxfp4Weight
from protocol.errors import ConfigError
from workers.engine.load.checkpoint import Checkpoint
from workers.engine.load.file_stream import FileStream
from workers.engine.load.int4_formats import (
    Format,
    Module,
    Read,
    joined,
    read_awq,
    read_gptq,
    read_packed,
    widened,
)
from workers.engine.load.quantize import StoredFormat
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
from workers.engine.models.leftovers import check_leftovers
from workers.engine.models.row_orders import (
    by_kind,
    gates_first,
    in_turned_order,
    interleaved_rows,
    rows_of,
    scales_shape,
    wide_form,
)
from workers.engine.models.tensor_names import (
    EMBEDDING,
    foreign_prefix,
    head_name,
    last_part,
    prefix_of,
)
from workers.engine.models.vocabulary import AS_STORED, VocabularyForm, norm_before
from workers.engine.models.weights import (
    ApartNorms,
    LayerWeights,
    ModelWeights,
    SideInputs,
    SideWeights,
    with_narrow_norms,
)

_INT4: Final[dict[StoredFormat, tuple[str, Format]]] = {
    StoredFormat.INT4_AWQ: (".qweight", read_awq),
    StoredFormat.INT4_GPTQ: (".qweight", read_gptq),
    StoredFormat.INT4_GPTQ_V2: (".qweight", partial(read_gptq, is_v2=True)),
    StoredFormat.INT4_PACKED: (".weight_packed", read_packed),
}
"""For each 4-bit format the suffix of a quantised tensor's name, and the function that reads it."""

_BLOCKS: Final = "_blocks"
_SCALES: Final = "_scales"
"""What follows the name of a tensor of all experts in MXFP4."""


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


class WeightReader:
    """Reads tensors in order and remembers which it took."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelDescription,
        device: torch.device,
        dtype: torch.dtype,
        report: Report,
        change: Callable[[LayerWeights], LayerWeights] | None,
    ) -> None:
        self._change = change
        self._checkpoint = checkpoint
        self._config = config
        self._device = device
        self._dtype = dtype
        self._report = report
        self._taken: set[str] = set()
        self._scale_suffix = config.stored.scale_suffix_of(checkpoint.names)
        self._reported_percent = -1
        self._num_widened = 0

    def all(self, vocabulary: VocabularyForm) -> ModelWeights:
        """The whole network."""
        config = self._config
        hidden, prefix = config.hidden_size, self._prefix()
        embedding = self._matrix(f"{prefix}{EMBEDDING}", config.vocab_size, hidden)
        whole = self._head(embedding, prefix)
        if vocabulary != AS_STORED:
            self.settle()
        embedding, head = vocabulary.changed(embedding, whole)
        del whole  # before the layers need its memory
        layers = self.layers(prefix)
        sides = self._side_inputs(prefix)
        norm = norm_before(head, self._norm(f"{prefix}norm", hidden), self._dtype)
        self.settle()
        self._report_widened()
        is_on_host = vocabulary.moves(self._device)
        return ModelWeights(embedding, layers, norm, head, is_on_host, sides)

    def _side_inputs(self, prefix: str) -> SideInputs | None:
        """What makes the side inputs of layers, all in 16 bits."""
        config, names = self._config, self._config.names
        if not (width := config.side_width):
            return None
        return SideInputs(
            self._wide(width, (prefix + names.side_embedding, config.side_vocab)),
            self._wide(config.hidden_size, (prefix + names.side_in, width)),
            self._norm(prefix + names.side_in_norm, config.layers[0].side_width),
        )

    def layers(self, prefix: str, first: int = 0) -> tuple[LayerWeights, ...]:
        """All layers, whose tensors begin with `prefix`; the names of the first one say `first`."""
        layers = []
        for index, described in enumerate(self._config.layers, first):
            self._report_progress()
            layer = self._layer(f"{prefix}layers.{index}.", described)
            mixer = described.mixer
            is_moved = isinstance(mixer, Attention) and (mixer.is_partial or mixer.out_gate)
            if self._change is not None or is_moved:
                self.settle()
                if isinstance(mixer, Attention) and not isinstance(mixer, Latent):
                    layer = in_turned_order(layer, mixer, self._dtype)
            layer = layer if self._change is None else self._change(layer)
            layers.append(with_narrow_norms(layer, self._dtype))
        return tuple(layers)

    def settle(self) -> None:
        """Wait for all that was read."""
        self._checkpoint.settle(self._report_progress)

    def check_nothing_left(self, model_dir: Path, only: str = "") -> None:
        """Refuse unused tensors whose names begin with `only` (`leftovers.py`)."""
        check_leftovers(
            self._checkpoint, self._config, self._taken, model_dir, only=only, report=self._report
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
        head = self._wide(config.hidden_size, (name, config.vocab_size))
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
            input_norm=self._norm(prefix + names.mixer_norm, hidden),
            mixer_out_norm=self._branch_norm(prefix, names.mixer_out_norm, described),
            mlp_norm=self._norm(prefix + names.mlp_norm, hidden),
            mlp_out_norm=self._branch_norm(prefix, names.mlp_out_norm, described),
            side=self._side(prefix, described),
            scale=self._take(prefix + names.scale, 1) if described.scaled else None,
        )

    def _side(self, prefix: str, described: Layer) -> SideWeights | None:
        names, hidden = self._config.names, self._config.hidden_size
        if not (width := described.side_width):
            return None
        return SideWeights(
            self._product(hidden, (prefix + names.side_gate, width)),
            self._product(width, (prefix + names.side_out, hidden)),
            self._norm(prefix + names.side_norm, hidden),
        )

    def _dense(self, prefix: str, described: Layer) -> dict[str, Any]:
        """What a dense network has of a layer."""
        names = self._config.names
        gate_up, down = self._config.mlp_matrices(described)
        share = gate_up[0] // len(names.gate_up)
        return {
            "gate_up": self._product(
                gate_up[1], *((prefix + name, share) for name in names.gate_up)
            ),
            "down": self._product(down[1], (prefix + names.down, down[0])),
        }

    def _attention(self, prefix: str, mixer: Attention) -> dict[str, Any]:
        """What an attention has of a layer. Output gates are still among the queries' rows."""
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
            "qkv": self._product(hidden, *qkv),
            "qkv_bias": self._merge(*biases) if mixer.qkv_bias else None,
            "qk_norm": self._head_norms(prefix, mixer) if mixer.head_norms else None,
            "out": self._product(query, (prefix + names.out, hidden)),
            "out_bias": self._take(f"{prefix}{names.out}.bias", hidden) if mixer.out_bias else None,
            "sinks": self._take(prefix + names.sinks, mixer.num_heads, dtype=torch.float32)
            if mixer.sinks
            else None,
        }

    def _latent(self, prefix: str, mixer: Latent) -> dict[str, Any]:
        """What latent attention has of a layer."""
        names, hidden, heads = self._config.names, self._config.hidden_size, mixer.num_heads
        first, cached, _ = mixer.side_rows
        maker = names.query_down if mixer.query_rank else names.qkv[0]
        qkv = self._product(hidden, (prefix + maker, first), (prefix + names.latent_down, cached))
        made = heads * (mixer.plain_dim + mixer.value_dim)
        up = self._wide(mixer.rank, (prefix + names.latent_up, made))
        norm = self._norm(prefix + names.latent_norm, mixer.rank)
        query_norm = query_up = None
        if mixer.query_rank:
            query_norm = self._norm(prefix + names.query_norm, mixer.query_rank)
            query_up = self._product(mixer.query_rank, (prefix + names.query_up, mixer.query_rows))
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
            "out": self._product(mixer.query_size, (prefix + names.out, hidden)),
            "out_bias": None,
            "latent": LatentWeights(norm, *ups, query_norm, query_up),
        }

    def _delta(self, prefix: str, mixer: DeltaRule) -> dict[str, Any]:
        """What a delta rule has of a layer."""
        hidden = self._config.hidden_size
        sizes, at = mixer.sizes, f"{prefix}{self._config.names.delta}."
        columns, heads, values = sizes.columns, sizes.num_value_heads, sizes.value_columns
        wide = torch.float32
        names = self._config.names
        if len(names.delta_in) == 1:
            qkv = self._product(hidden, (at + names.delta_in[0], columns + values))
            gate = self._wide(hidden, (at + names.delta_gates[0], 2 * heads))
            self.settle()
            of_products, of_gates = by_kind(sizes)
            qkv = rows_of(qkv, of_products.to(self._device), self._dtype)
            gate = gate[of_gates.to(self._device)]
        else:
            sides = zip(names.delta_in, (columns, values), strict=True)
            qkv = self._product(hidden, *((at + name, rows) for name, rows in sides))
            gate = self._wide(hidden, *((at + name, heads) for name in names.delta_gates))
        return {
            "qkv": qkv,
            "qkv_bias": None,
            "qk_norm": None,
            "out": self._product(values, (f"{at}out_proj", hidden)),
            "out_bias": None,
            "gate": gate,
            "delta": DeltaWeights(
                conv=self._take(f"{at}conv1d.weight", columns, 1, mixer.conv_width).squeeze(1),
                decay=self._take(f"{at}A_log", heads, dtype=wide),
                dt_bias=self._take(f"{at}dt_bias", heads, dtype=wide),
                norm=self._take(f"{at}norm.weight", mixer.value_dim),
            ),
        }

    def _mixture(self, prefix: str, described: Layer) -> dict[str, Any]:
        """What a mixture has of a layer. Experts are tensors of their own, or all in one."""
        mlp, names, hidden = described.mlp, self._config.names, self._config.hidden_size
        assert isinstance(mlp, Experts)
        apart = None
        count, at = mlp.num_experts, f"{prefix}{names.experts}."
        if self._is_fused(f"{at}{names.fused_gate_up}"):
            gate_up = self._fused(f"{at}{names.fused_gate_up}", count, 2 * mlp.width, hidden)
            down = self._fused(f"{at}{names.fused_down}", count, hidden, mlp.width)
        else:
            gate_up, down = self._gated([f"{at}{one}." for one in range(count)], mlp.width)
        router = prefix + names.router
        rows = [(router, count)] + [(prefix + names.shared_gate, 1)] * mlp.shared_gate
        experts = ExpertWeights(router=self._wide(hidden, *rows))
        if mlp.choice_bias:
            bias = self._take(f"{router}.{names.choice_bias}", count, dtype=torch.float32)
            experts = experts._replace(choice_bias=bias)
        if mlp.shared_width:
            both = self._gated([f"{prefix}{names.shared}."], mlp.shared_width)
            experts = experts._replace(shared_gate_up=both[0], shared_down=both[1])
        if mlp.biased:
            sides = self._take(f"{at}{names.fused_gate_up}_bias", count, 2 * mlp.width)
            experts = experts._replace(
                router_bias=self._take(f"{router}.bias", count),
                gate_up_bias=sides[:, gates_first(2 * mlp.width)] if names.alternate else sides,
                down_bias=self._take(f"{at}{names.fused_down}_bias", count, hidden),
            )
        if mlp.apart:
            scales = self._take(prefix + names.expert_scales, count, dtype=torch.float32)
            experts = experts._replace(scales=scales)
            own = self._take(prefix + names.router_norm, hidden, dtype=torch.float32)
            apart = ApartNorms(
                own.mul_(hidden**-0.5),
                self._norm(prefix + names.experts_norm, hidden),
                self._norm(prefix + names.experts_out_norm, hidden),
                self._norm(prefix + names.shared_out_norm, hidden),
            )
        return {"gate_up": gate_up, "down": down, "experts": experts, "apart": apart}

    def _gated(self, starts: list[str], width: int) -> tuple[Weight, Weight]:
        """The stacks of gated networks whose modules' names follow one of `starts` each."""
        names, hidden = self._config.names, self._config.hidden_size
        gates, downs = [last_part(name) for name in names.gate_up], last_part(names.down)
        sides = [(start + name, width) for start in starts for name in gates]
        gate_up = self._product(hidden, *sides)
        return gate_up, self._product(width, *((start + downs, hidden) for start in starts))

    def _fused(self, name: str, count: int, num_rows: int, depth: int) -> Weight:
        """The stack of the one tensor `name` [count, num_rows, depth]."""
        stack, stored = count * num_rows, self._config.stored
        shape, names = (count, num_rows, depth), self._config.names
        if name + _BLOCKS in self._checkpoint.names:
            return self._mxfp4(name, *shape)
        if names.alternate:
            turned = self._checkpoint.read(name, (count, depth, num_rows)).mT
            self._taken.add(name)
            if name.endswith(names.fused_gate_up):
                turned = turned[:, gates_first(num_rows)]
            return turned.reshape(stack, depth).to(self._device, self._dtype, copy=True)
        if not self._has_scales(name):
            return self._merge((name, shape)).view(stack, depth)
        values = self._merge((name, shape), dtype=FP8).view(stack, depth)
        scaled = name + self._fused_scale_suffix
        if stored is StoredFormat.FP8_TENSORS:
            return Fp8Weight(values, self._spread((scaled, num_rows), count=count))
        part = scaled, (count, *scales_shape(stored, num_rows, depth))
        scales = self._merge(part, dtype=torch.float32).flatten(0, 1)
        return Fp8Weight(values, scales.view(-1) if stored is StoredFormat.FP8_ROWS else scales)

    def _is_fused(self, name: str) -> bool:
        """Whether all experts are in the one tensor `name`, or in its blocks and scales."""
        return not {name, name + _BLOCKS}.isdisjoint(self._checkpoint.names)

    def _mxfp4(self, name: str, count: int, num_rows: int, depth: int) -> Mxfp4Weight:
        """The stack of blocks and scales [count, num_rows, ...] of groups of columns."""
        groups, names = depth // GROUP, self._config.names
        pairs = self._checkpoint.read(name + _BLOCKS, (count, num_rows, groups, GROUP // 2))
        powers = self._checkpoint.read(name + _SCALES, (count, num_rows, groups))
        self._taken |= {name + _BLOCKS, name + _SCALES}
        if names.alternate and name.endswith(names.fused_gate_up):
            order = gates_first(num_rows)
            pairs, powers = pairs[:, order], powers[:, order]
        stack = count * num_rows
        on_device = [
            part.reshape(stack, -1).to(self._device, copy=True) for part in (pairs, powers)
        ]
        return Mxfp4Weight(*on_device)

    @property
    def _fused_scale_suffix(self) -> str:
        """What follows the name of a tensor of all experts to name its scales."""
        return self._scale_suffix.replace(".weight", "")

    def _has_scales(self, name: str) -> bool:
        """Whether the fused tensor `name` is in 8 bits."""
        is_named = name + self._fused_scale_suffix in self._checkpoint.names
        return self._config.stored.is_fp8 and is_named

    def _spread(self, *matrices: tuple[str, int], count: int = 1) -> Tensor:
        """A scale for each row of matrices that have one each, `count` of them in one tensor; by
        the names of their scales and their numbers of rows. Raises `ConfigError`.
        """
        parts = []
        for name, num_rows in matrices:
            shape = self._checkpoint.shape_of(name)
            scales = self._checkpoint.read(name, shape).float()
            self._taken.add(name)
            if scales.numel() != count:
                raise ConfigError(
                    f"{name} has shape {list(shape)}, but its config.json has one scale for each "
                    "matrix: take the quantization_config of its makers"
                )
            parts.append(scales.view(-1, 1).expand(count, num_rows).flatten())
        return torch.cat(parts).to(self._device)

    def _head_norms(self, prefix: str, mixer: Attention) -> Tensor:
        """One row per head: queries, then keys, then ones for values that are normed."""
        names = self._config.names
        query = self._norm(prefix + names.q_norm, mixer.head_dim)
        parts = [query.expand(mixer.num_heads, -1)]
        if not mixer.borrows:
            key = self._norm(prefix + names.k_norm, mixer.head_dim)
            parts.append(key.expand(mixer.num_kv_heads, -1))
            if mixer.value_norms:
                parts.append(torch.ones_like(parts[-1]))
        return torch.cat(parts)

    def _branch_norm(self, prefix: str, name: str, described: Layer) -> Tensor | None:
        if not described.branch_norms:
            return None
        return self._norm(prefix + name, self._config.hidden_size)

    def _norm(self, name: str, size: int) -> Tensor:
        """A norm's weights, with what the family adds to them."""
        offset = self._config.norm_offset
        if not offset:
            return self._take(f"{name}.weight", size)
        return self._take(f"{name}.weight", size, dtype=torch.float32).add_(offset)

    def _product(self, depth: int, *modules: tuple[str, int]) -> Weight:
        """The weight of a product, [rows of all modules, depth], as the checkpoint holds it."""
        weights = [(f"{name}.weight", (num_rows, depth)) for name, num_rows in modules]
        stored, names = self._config.stored, self._checkpoint.names
        if stored in _INT4:
            return self._int4_product(depth, modules, *_INT4[stored])
        scaled = [name for name, _ in modules if name + self._scale_suffix in names]
        if stored is StoredFormat.DENSE or not scaled:
            return self._merge(*weights)
        for name, num_rows in modules:
            self._check_fp8(name, num_rows, is_last=name == modules[-1][0])
        values = self._merge(*weights, dtype=FP8)
        suffixed = [name + self._scale_suffix for name, _ in modules]
        if stored is StoredFormat.FP8_TENSORS:
            counts = [num_rows for _, num_rows in modules]
            return Fp8Weight(values, self._spread(*zip(suffixed, counts, strict=True)))
        shapes = [scales_shape(stored, num_rows, depth) for _, num_rows in modules]
        scales = self._merge(*zip(suffixed, shapes, strict=True), dtype=torch.float32)
        return Fp8Weight(values, scales.view(-1) if stored is StoredFormat.FP8_ROWS else scales)

    def _int4_product(
        self, depth: int, modules: tuple[tuple[str, int], ...], suffix: str, read: Format
    ) -> Weight:
        """As `_product`, of a checkpoint in 4 bits. Modules that it leaves in 16 bits stay so.
        Where those of one matrix are not alike, all become 16 bits.
        """
        quantised = {name for name, _ in modules if name + suffix in self._checkpoint.names}
        if not quantised:
            return self._merge(*((f"{name}.weight", (rows, depth)) for name, rows in modules))
        parts: list[Read] = []
        for name, num_rows in modules:
            if name not in quantised:
                parts.append(self._take(f"{name}.weight", num_rows, depth))
                continue
            module = Module(self._checkpoint, name, num_rows, depth)
            parts.append(read(module))
            self._taken |= module.taken
        small = [part for part in parts if isinstance(part, Int4Weight)]
        alike = joined(small) if len(small) == len(parts) else None
        if alike is not None:
            return alike.to(self._device)
        self._num_widened += 1
        return torch.cat([widened(part, self._device, self._dtype) for part in parts])

    def _wide(self, depth: int, *modules: tuple[str, int]) -> Tensor:
        """The rows of all modules, [rows, depth], in 16 bits whatever the checkpoint holds."""
        stored = self._config.stored
        suffix = _INT4[stored][0] if stored in _INT4 else self._scale_suffix
        if not any(name + suffix in self._checkpoint.names for name, _ in modules):
            return self._merge(*((f"{name}.weight", (rows, depth)) for name, rows in modules))
        parts = [self._product(depth, module) for module in modules]
        self.settle()
        return torch.cat([wide_form(part, self._dtype) for part in parts])

    def _check_fp8(self, name: str, num_rows: int, *, is_last: bool) -> None:
        """Check a module that has scales, or whose neighbours in a merged matrix have some."""
        weight = f"{name}.weight"
        if weight in self._checkpoint.names and not self._checkpoint.is_fp8(weight):
            raise ConfigError(
                f"{weight} is not in 8 bits, but its scales or its neighbours are: take another "
                "quantised model, or the bf16 one with quantization = 'fp8'"
            )
        if self._config.stored.is_by_block and num_rows % BLOCK and not is_last:
            raise ConfigError(
                f"{weight} has {num_rows} rows, which blocks of {BLOCK} do not divide: take the "
                "bf16 model with quantization = 'fp8'"
            )

    def _merge(
        self, *parts: tuple[str, tuple[int, ...]], dtype: torch.dtype | None = None
    ) -> Tensor:
        """The parts one after another, each read into its final place."""
        num_rows = sum(shape[0] for _, shape in parts)
        shape = (num_rows, *parts[0][1][1:])
        merged = torch.empty(shape, dtype=dtype or self._dtype, device=self._device)
        row = 0
        for name, shape in parts:
            self._checkpoint.read_into(name, merged[row : row + shape[0]])
            self._taken.add(name)
            row += shape[0]
        return merged

    def _matrix(self, name: str, *shape: int) -> Tensor:
        return self._merge((name, shape))

    def _report_progress(self) -> None:
        """Report the bytes read, at most a hundred times."""
        done, total = self._checkpoint.done_bytes, self._checkpoint.num_bytes
        if (percent := 100 * done // total) > self._reported_percent:
            self._reported_percent = percent
            self._report("load", done / total, f"{bytes_text(done)} of {bytes_text(total)}")

    def _report_widened(self) -> None:
        """Say what takes more memory than the checkpoint's format promises."""
        if self._num_widened:
            text = "matrices are in 16 bits, because the checkpoint holds their parts differently"
            self._report("load", 1.0, f"{self._num_widened} {text}")

    def _take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        wanted = dtype or self._dtype
        tensor = self._checkpoint.read(name, shape, is_float=wanted.is_floating_point)
        self._taken.add(name)
        # copy=True: what safetensors gives may be a view of the mapped file.
        return tensor.to(self._device, wanted, copy=True)
