"""Which part of a network a rank holds: a share of the heads, of the widths and of the head's rows.

Owns the cut of descriptions and of weights. Products into heads and gates are cut by rows, those
back to the hidden size by columns, so that a layer needs two sums over all ranks: behind its mixer
and behind its feed-forward network. Must not know processes, nor how a sum is made.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import torch
from torch import Tensor

from kernels.delta_rule import DeltaSizes, DeltaWeights
from kernels.experts import ExpertWeights
from kernels.fp8 import BLOCK, DualWeight, Fp8Weight
from kernels.int4 import GROUPS, PER_WORD, Int4Weight
from kernels.linear import Weight
from kernels.mxfp4 import GROUP as POWER_COLUMNS
from kernels.mxfp4 import Mxfp4Weight
from protocol.errors import ConfigError
from workers.engine.load.quantize import StoredFormat
from workers.engine.models.description import (
    Attention,
    DeltaRule,
    Experts,
    Latent,
    Layer,
    ModelDescription,
)
from workers.engine.models.weights import LayerWeights, ModelWeights


@dataclass(frozen=True, slots=True)
class Share:
    """Rank `index` of `count`."""

    index: int
    count: int

    @property
    def is_first(self) -> bool:
        """Whether this rank adds what must be added once: residuals and biases."""
        return self.index == 0

    def of(self, size: int) -> slice:
        """This rank's part of `size` things, which the ranks divide evenly."""
        each = size // self.count
        return slice(self.index * each, (self.index + 1) * each)

    def of_keys(self, num_heads: int) -> slice:
        """This rank's part of the keys' heads. Where there are fewer heads than ranks it is the one
        that its queries read, which other ranks have too.
        """
        if num_heads % self.count == 0:
            return self.of(num_heads)
        head = self.index * num_heads // self.count
        return slice(head, head + 1)


def config_of(config: ModelDescription, share: Share) -> ModelDescription:
    """The network of one rank. Raises `ConfigError` naming what the ranks do not divide."""
    layers = {layer: _layer_config(layer, share.count) for layer in set(config.layers)}
    if config.stored is StoredFormat.MXFP4:
        _check_powers(layers.values(), share.count)
    return msgspec.structs.replace(
        config,
        layers=tuple([layers[each] for each in config.layers]),
        head_ranks=share.count if divides_head(config, share) else 1,
    )


def _check_powers(layers: Iterable[Layer], count: int) -> None:
    """Raise `ConfigError` for experts in MXFP4 of which two ranks would share a power."""
    for mlp in [layer.mlp for layer in layers]:
        if isinstance(mlp, Experts) and mlp.width % POWER_COLUMNS:
            raise ConfigError(
                f"tensor_parallel = {count} leaves {mlp.width} columns of an expert to each rank, "
                f"and experts in MXFP4 have a scale for {POWER_COLUMNS} of them: take fewer cards, "
                "or the checkpoint in 16 bits"
            )


def divides_head(config: ModelDescription, share: Share) -> bool:
    """Whether each rank holds a part of the head's rows; else each holds the whole head."""
    return config.vocab_size % share.count == 0


def _layer_config(layer: Layer, count: int) -> Layer:
    mixer, mlp = layer.mixer, layer.mlp
    if isinstance(mixer, DeltaRule):
        sides = {"num_key_heads": mixer.num_key_heads, "num_value_heads": mixer.num_value_heads}
    elif isinstance(mixer, Latent):
        sides = {"num_heads": mixer.num_heads}  # all heads read the same cached row
    else:
        sides = {"num_heads": mixer.num_heads, "num_kv_heads": mixer.num_kv_heads}
    widths = {"width": mlp.width}
    if isinstance(mlp, Experts) and mlp.shared_width:
        widths["shared_width"] = mlp.shared_width
    for name, size in (*sides.items(), *widths.items()):
        if size % count and (name != "num_kv_heads" or count % size):
            raise ConfigError(
                f"tensor_parallel = {count} does not divide the {size} of {name} in a layer of "
                "this model: take a divisor of it"
            )
    parts = {name: max(1, size // count) for name, size in sides.items()}
    narrow = {name: size // count for name, size in widths.items()}
    return msgspec.structs.replace(
        layer,
        mixer=msgspec.structs.replace(mixer, **parts),
        mlp=msgspec.structs.replace(mlp, **narrow),
    )


class LayerCut:
    """Cuts the layers of `config`, which come in their order, to what one rank holds of each."""

    def __init__(self, config: ModelDescription, share: Share) -> None:
        self._layers = iter(config.layers)
        self._share = share

    def __call__(self, weights: LayerWeights) -> LayerWeights:
        """The part of the next layer. Raises `ConfigError` for a format that is not cut."""
        described = next(self._layers)
        mixer = described.mixer
        if isinstance(mixer, DeltaRule):
            cut = _delta(weights, mixer, self._share)
        elif isinstance(mixer, Latent):
            cut = _latent(weights, mixer, self._share)
        else:
            cut = _attention(weights, mixer, self._share)
        mlp = described.mlp
        if isinstance(mlp, Experts):
            return _mixture(cut, mlp, self._share)
        part = self._share.of(mlp.width)
        return replace(
            cut,
            gate_up=rows_of(cut.gate_up, [part, _moved(part, mlp.width)]),
            down=columns_of(cut.down, part),
        )


def model_of(weights: ModelWeights, config: ModelDescription, share: Share) -> ModelWeights:
    """The weights with this rank's rows of the head; the layers are cut already. The embedding is
    whole on each rank, because a step reads few rows of it.
    """
    if not divides_head(config, share):
        return weights
    return replace(weights, head=rows_of(weights.head, [share.of(config.vocab_size)]))


def rows_of(weight: Weight, parts: Sequence[slice]) -> Weight:
    """These rows of a weight, one part after the other. Raises `ConfigError`."""
    if isinstance(weight, Tensor):
        if len(parts) == 1:
            return weight[parts[0]]  # contiguous, and without a copy
        return torch.cat([weight[part] for part in parts])
    if isinstance(weight, Fp8Weight) and weight.is_blocked:
        blocks = [_blocks(part) for part in parts]
        values = torch.cat([weight.values.view(torch.uint8)[part] for part in parts])
        scales = torch.cat([weight.scales[block] for block in blocks])
        return Fp8Weight(values.view(weight.values.dtype), scales)
    if isinstance(weight, DualWeight):
        raise TypeError("rows are cut before they are doubled")
    chosen = [torch.arange(part.start, part.stop) for part in parts]
    return weight.rows(torch.cat(chosen).to(_device_of(weight)))


def _device_of(weight: Fp8Weight | Int4Weight | Mxfp4Weight) -> torch.device:
    if isinstance(weight, Fp8Weight):
        return weight.values.device
    return (weight.words if isinstance(weight, Int4Weight) else weight.powers).device


def columns_of(weight: Weight, part: slice) -> Weight:
    """These columns of a weight. Raises `ConfigError`."""
    if isinstance(weight, Tensor):
        return weight[:, part].contiguous()
    if isinstance(weight, Fp8Weight):
        values = weight.values.view(torch.uint8)[:, part].contiguous()
        scales = weight.scales
        if weight.is_blocked:
            scales = scales[:, _blocks(part)].contiguous()
        return Fp8Weight(values.view(weight.values.dtype), scales)
    if isinstance(weight, Int4Weight):
        return _int4_columns(weight, part)
    if isinstance(weight, Mxfp4Weight):
        _check_groups(part, POWER_COLUMNS)
        pairs = weight.pairs[:, part.start // 2 : part.stop // 2]
        powers = weight.powers[:, part.start // POWER_COLUMNS : part.stop // POWER_COLUMNS]
        return replace(weight, pairs=pairs.contiguous(), powers=powers.contiguous())
    raise TypeError("columns are cut before they are doubled")


def _int4_columns(weight: Int4Weight, part: slice) -> Int4Weight:
    """These columns. Where two parts would share a group, all groups become smaller ones, with the
    same scales.
    """
    if weight.order is not None:
        raise ConfigError(
            "this checkpoint has sorted its columns by activations (desc_act, g_idx), so each of "
            f"its groups of {weight.group} has columns of several ranks: take one card, a "
            "checkpoint that is not sorted, or the one in 16 bits with `quantization`"
        )
    sizes = [size for size in GROUPS if size <= weight.group]
    size = next((each for each in sizes if _are_apart(part, each)), sizes[-1])
    _check_groups(part, size)
    groups = slice(part.start // size, part.stop // size)
    scales, zeros = [
        None if each is None else _in_parts(each, weight.group // size)[:, groups].contiguous()
        for each in (weight.scales, weight.zeros)
    ]
    assert scales is not None
    words = weight.words[:, part.start // PER_WORD : part.stop // PER_WORD].contiguous()
    return Int4Weight(words, scales, zeros)


def _in_parts(scales: Tensor, times: int) -> Tensor:
    return scales if times == 1 else scales.repeat_interleave(times, 1)


def _are_apart(part: slice, size: int) -> bool:
    return not (part.start % size or part.stop % size)


def _check_groups(part: slice, size: int) -> None:
    """Raise `ConfigError` if a group of `size` columns has some of two parts."""
    if not _are_apart(part, size):
        raise ConfigError(
            f"a rank would have the columns {part.start} to {part.stop} of a matrix in 4 bits, and "
            f"{size} of them have one scale: take fewer cards, or the checkpoint in 16 bits with "
            "`quantization`"
        )


def _blocks(part: slice) -> slice:
    """The blocks of scales of this part. Raises `ConfigError` if two parts share one."""
    if part.start % BLOCK or part.stop % BLOCK:
        raise ConfigError(
            f"a block of {BLOCK} scales holds parts of two ranks ({part.start} to {part.stop}): "
            'take the checkpoint in 16 bits with quantization = "fp8"'
        )
    return slice(part.start // BLOCK, part.stop // BLOCK)


def _moved(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def _attention(weights: LayerWeights, mixer: Attention, share: Share) -> LayerWeights:
    """Merged rows are queries, keys, values, by head; a layer that borrows has queries alone. Norms
    and sinks are by head too.
    """
    heads, kv_heads, dim = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
    of_heads, of_keys = share.of(heads), share.of_keys(kv_heads)
    norms = [of_heads]
    if not mixer.borrows:
        norms += [_moved(of_keys, heads), _moved(of_keys, heads + kv_heads)]
    merged = [slice(part.start * dim, part.stop * dim) for part in norms]
    query = merged[0]
    if not mixer.value_norms:
        norms = norms[:2]
    return replace(
        weights,
        qkv=rows_of(weights.qkv, merged),
        qkv_bias=_cut(weights.qkv_bias, merged),
        qk_norm=_cut(weights.qk_norm, norms),
        out=columns_of(weights.out, query),
        out_bias=weights.out_bias if share.is_first else None,
        gate=None if weights.gate is None else rows_of(weights.gate, [query]),
        sinks=_cut(weights.sinks, [of_heads]),
    )


def _latent(weights: LayerWeights, mixer: Latent, share: Share) -> LayerWeights:
    """Each rank has the queries of its heads and what makes their keys and values of latents. All
    heads share the latents, so the weights that make and cache them are whole on each rank, as is
    the product that makes the queries' latents.
    """
    latent = weights.latent
    assert latent is not None
    first, cached, _ = mixer.side_rows
    queries, heads = share.of(mixer.query_rows), share.of(mixer.num_heads)
    query_up = latent.query_up
    return replace(
        weights,
        qkv=weights.qkv
        if mixer.query_rank
        else rows_of(weights.qkv, [queries, slice(first, first + cached)]),
        out=columns_of(weights.out, share.of(mixer.query_size)),
        latent=latent._replace(
            key_up=latent.key_up[heads].contiguous(),
            value_up=latent.value_up[heads].contiguous(),
            query_up=None if query_up is None else rows_of(query_up, [queries]),
        ),
    )


def _cut(tensor: Tensor | None, parts: Sequence[slice]) -> Tensor | None:
    return None if tensor is None else torch.cat([tensor[part] for part in parts])


def _delta(weights: LayerWeights, mixer: DeltaRule, share: Share) -> LayerWeights:
    """Merged rows are queries and keys by key head, values and z by value head; gates are b and a
    by value head. The value heads of a key head lie side by side.
    """
    sizes = mixer.sizes
    delta, gate = weights.delta, weights.gate
    assert delta is not None
    assert gate is not None
    columns, merged = _delta_rows(sizes, share)
    heads = share.of(sizes.num_value_heads)
    return replace(
        weights,
        qkv=rows_of(weights.qkv, merged),
        out=columns_of(weights.out, share.of(sizes.value_columns)),
        gate=rows_of(gate, [heads, _moved(heads, sizes.num_value_heads)]),
        delta=DeltaWeights(
            conv=torch.cat([delta.conv[part] for part in columns]),
            decay=delta.decay[heads].contiguous(),
            dt_bias=delta.dt_bias[heads].contiguous(),
            norm=delta.norm,
        ),
    )


def _delta_rows(sizes: DeltaSizes, share: Share) -> tuple[list[slice], list[slice]]:
    """The rows of queries, keys and values, and these with the rows of z."""
    keys = sizes.num_key_heads * sizes.key_dim
    key, value = share.of(keys), share.of(sizes.value_columns)
    columns = [key, _moved(key, keys), _moved(value, 2 * keys)]
    return columns, [*columns, _moved(value, 2 * keys + sizes.value_columns)]


def _mixture(weights: LayerWeights, mlp: Experts, share: Share) -> LayerWeights:
    """Every rank holds a share of each expert's width, so that none waits for the chosen ones."""
    experts, count, width = weights.experts, mlp.num_experts, mlp.width
    assert experts is not None
    part = share.of(width)
    gated = [
        _moved(side, 2 * width * expert)
        for expert in range(count)
        for side in (part, _moved(part, width))
    ]
    return replace(
        weights,
        gate_up=rows_of(weights.gate_up, gated),
        down=columns_of(weights.down, part),
        experts=_beside_experts(experts, mlp, share),
    )


def _beside_experts(experts: ExpertWeights, mlp: Experts, share: Share) -> ExpertWeights:
    part, shared = share.of(mlp.width), share.of(mlp.shared_width)
    sides, down_bias = experts.gate_up_bias, experts.down_bias
    if sides is not None:
        sides = torch.cat([sides[:, part], sides[:, _moved(part, mlp.width)]], dim=1)
    if down_bias is not None and not share.is_first:
        down_bias = torch.zeros_like(down_bias)
    gate_up, down = experts.shared_gate_up, experts.shared_down
    if gate_up is not None and down is not None:
        gate_up = rows_of(gate_up, [shared, _moved(shared, mlp.shared_width)])
        down = columns_of(down, shared)
    return experts._replace(
        gate_up_bias=sides, down_bias=down_bias, shared_gate_up=gate_up, shared_down=down
    )


def cut_and_then(
    cut: LayerCut, change: Callable[[LayerWeights], LayerWeights] | None
) -> Callable[[LayerWeights], LayerWeights]:
    """The change of a layer that cuts it before it is narrowed."""
    return cut if change is None else lambda layer: change(cut(layer))
