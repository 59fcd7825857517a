"""DFlash and DFlash 2: drafts of a whole block in one pass (z-lab/dflash).

Owns the forward pass over a step's rows. Must not know config.json, nor how drafts are verified.

For every row of the target, `fc` mixes the taps, and each layer makes a key and a value from the
mixture: the context, written once per row. A block is the last token, which has no context row yet,
and placeholders behind it. Its layers attend to the context and to the block itself. The block's
keys and values go to the slots of its positions, where the context of the next step overwrites
them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from kernels.attention import AttentionPlan, PagedPlan, attend, blocks_at, write_context
from kernels.fp8 import quantize_weight
from kernels.linear import Weight, linear, norm_linear
from kernels.rms_norm import rms_norm
from kernels.sample import best_tokens
from kernels.silu_mul import silu_mul
from protocol.errors import ConfigError
from workers.engine.drafting.captured import Blocks, CapturedDrafts, Taken
from workers.engine.drafting.description import DFlashShape
from workers.engine.drafting.dflash2 import BranchConv, Conv, PairScores, walk
from workers.engine.drafting.drafter import Capture, Drafted, DraftStep
from workers.engine.drafting.weights import (
    DrafterReader,
    DraftingHead,
    own_bytes,
    ranks_of_head,
    reading,
)
from workers.engine.models.angles import cos_sin
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.models.weights import ModelWeights, quantised

_PROBE: Final = "fc.weight"


@dataclass(frozen=True, slots=True)
class DFlashWeights:
    """`model` has the target's embedding and head, unless there are own ones; `fc` [hidden, taps x
    target's hidden]; `norm` [hidden] of what it gives. `token_ids` int64 [drafted vocabulary], None
    if that is the target's; `mask` [hidden] stands in for the placeholder's embedding. `convs` are
    those of each layer's attention and feed-forward network.
    """

    model: ModelWeights
    fc: Tensor
    norm: Tensor
    token_ids: Tensor | None = None
    mask: Tensor | None = None
    convs: tuple[tuple[Conv, Conv], ...] = ()
    pairs: PairScores | None = None

    @property
    def context(self) -> Tensor:
        """The weights that make keys and values of all layers, [layers x 2 x key heads x D,
        hidden]. Raises `ConfigError` for weights in 8 bits.
        """
        parts = []
        for layer in self.model.layers:
            if not isinstance(layer.qkv, Tensor):
                raise ConfigError("a DFlash drafter in 8 bits is not supported: take it in 16 bits")
            parts.append(layer.qkv[layer.out.shape[1] :])
        return torch.cat(parts)

    def others(self) -> list[Tensor | None]:
        """All tensors beside `model`."""
        convs = [tensor for pair in self.convs for c in pair for tensor in (c.base, c.projection)]
        pairs = self.pairs
        own = [] if pairs is None else [pairs.predecessors, pairs.successors, pairs.hidden]
        return [self.fc, self.norm, self.token_ids, self.mask, *convs, *own]


def read_dflash(path: Path, shape: DFlashShape, target: Network) -> DFlashWeights:
    """The weights in the directory `path`. Raises `ConfigError`."""
    hidden = shape.network.hidden_size
    with reading(path, shape.network, target) as reader:
        prefix = reader.prefix(_PROBE)
        columns = len(shape.taps) * target.config.hidden_size
        mask = prefix + "mask_embedding"
        return DFlashWeights(
            model=reader.model(prefix, shape.vocab_size),
            fc=reader.tensor(prefix + _PROBE, hidden, columns),
            norm=reader.tensor(f"{prefix}hidden_norm.weight", hidden),
            token_ids=reader.token_ids(shape.vocab_size),
            mask=reader.tensor(mask, hidden) if reader.has(mask) else None,
            convs=_convs(reader, prefix, shape),
            pairs=_pairs(reader, shape),
        )


def _convs(reader: DrafterReader, prefix: str, shape: DFlashShape) -> tuple[tuple[Conv, Conv], ...]:
    """The two convolutions of each layer; empty if the shape has none."""
    if shape.convolution is None:
        return ()
    size, hidden = shape.convolution.size, shape.network.hidden_size
    rows = 2 * size * (hidden // shape.convolution.group)

    def conv(name: str) -> Conv:
        base = reader.tensor(f"{name}.base_kernel", 2, size, hidden)
        return Conv(base, reader.tensor(f"{name}.kernel_projection.weight", rows, hidden))

    layers = [f"{prefix}layers.{index}." for index in range(shape.network.num_layers)]
    return tuple([(conv(f"{each}attention_conv"), conv(f"{each}mlp_conv")) for each in layers])


def _pairs(reader: DrafterReader, shape: DFlashShape) -> PairScores | None:
    if shape.selector is None:
        return None
    rank, vocabulary = shape.selector.rank, shape.network.vocab_size
    return PairScores(
        reader.tensor(reader.find("predecessor_codebook"), vocabulary, rank),
        reader.tensor(reader.find("successor_codebook"), vocabulary, rank),
        reader.tensor(reader.find("hidden_projection"), rank, shape.network.hidden_size),
    )


@final
class DFlash:
    """See `workers.engine.drafting.drafter.Drafter`; for sequences of up to `window` tokens."""

    def __init__(
        self,
        shape: DFlashShape,
        weights: DFlashWeights,
        target: Network,
        window: int,
        *,
        fp8: bool = False,
    ) -> None:
        """With `fp8` all products of normed rows are in 8 bits; that of the head uses a copy."""
        self.name = "dflash" if shape.convolution is None else "dflash2"
        self.taps = shape.taps
        self.reads_hidden = False
        self.cuts_anew = False
        self.max_depth = shape.max_depth
        self._shape = shape
        self._weights = weights
        model, others = weights.model, weights.others()
        self._context: Weight = weights.context
        self._head = DraftingHead(model, ranks_of_head(model, target), fp8=fp8)
        if fp8:
            model = replace(model, layers=tuple([quantised(layer) for layer in model.layers]))
            self._context = quantize_weight(weights.context)
        self._model = model
        own = own_bytes(model, target.weights, *others)
        self.num_bytes = own + self._context.nbytes + self._head.num_bytes
        config, heads = shape.network, shape.network.attention
        longest = window + shape.block_size  # a block may reach past the window's end
        self._network = Network(config, model, longest)
        self._angles = cos_sin(heads.rope, heads.head_dim, longest).to(target.device)
        norms = [layer.qk_norm for layer in weights.model.layers if layer.qk_norm is not None]
        self._key_norms = torch.stack([norm[heads.num_heads :] for norm in norms])
        self.token_bytes = config.token_numbers * weights.fc.element_size()
        self._cache: KvCache | None = None
        self._captured = CapturedDrafts(self._pass, self.max_depth, target.device)
        self._place = target.place

    @property
    def has_pending_captures(self) -> bool:
        """See `CapturesDrafts`."""
        return self._captured.has_pending

    def prepare(self, capture: Capture) -> bool:
        """See `CapturesDrafts`."""
        return self._captured.prepare(capture)

    @property
    def cache(self) -> KvCache:
        """Its keys and values."""
        assert self._cache is not None  # `take_cache` comes first
        return self._cache

    def take_cache(self, num_blocks: int, block_size: int) -> None:
        """See `Drafter`."""
        like = self._weights.fc
        self._cache = KvCache(
            self._shape.network,
            num_blocks - 1,
            block_size,
            like.device,
            like.dtype,
            place=self._place,
        )

    def draft(self, step: DraftStep) -> Drafted:
        """See `Drafter`."""
        assert step.taps is not None
        num_rows = step.depth + self._shape.drafts_own_place
        if isinstance(step.plan, AttentionPlan):
            self.take_in(step.taps, step.plan)
            if not step.depth:
                return _nothing(step.anchors)
            hidden = self.block(step.anchors, num_rows, step.plan_rows(num_rows, 0))
            return self.choose(step.anchors, hidden)
        tables = step.plan.table_rows[step.rows]
        blocks = Blocks(step.anchors, step.anchor_positions.int(), tables, step.rows)
        drafted = self._captured.run(step, blocks)
        taken = Taken(step.taps, step.next_ids, step.plan)
        return drafted or self._pass(taken, blocks, step.depth)

    def _pass(self, taken: Taken, blocks: Blocks, depth: int) -> Drafted:
        """A pass over paged rows, whose positions the host need not know."""
        plan = taken.plan
        self.take_in(taken.kept, plan)
        if not depth:
            return _nothing(blocks.anchors)
        num_rows = depth + self._shape.drafts_own_place
        config, (keys, _) = self._shape.network, self.cache.layers[0]
        own = blocks_at(
            blocks.positions,
            blocks.table_rows,
            plan.block_tables,
            num_rows,
            config.attention.num_heads,
            keys,
            self._weights.fc.dtype,
            is_scoped=config.is_scoped,
        )
        return self.choose(blocks.anchors, self.block(blocks.anchors, num_rows, own))

    def take_in(self, taps: Tensor, plan: AttentionPlan | PagedPlan) -> None:
        """See `Drafter`: write the context of rows."""
        eps = self._shape.network.rms_norm_eps
        mixed = linear(taps, self._weights.fc)
        rows = norm_linear(mixed, self._weights.norm, eps, self._context)
        write_context(rows, self._key_norms, eps, self._angles, self.cache.memory, plan)

    def block(self, anchors: Tensor, num_rows: int, plan: AttentionPlan | PagedPlan) -> Tensor:
        """Compute blocks of `num_rows` rows: the hidden states of their drafting rows before the
        last norm, [S, drafts, hidden].
        """
        ids = anchors.new_full((anchors.shape[0], num_rows), self._shape.mask_id)
        ids[:, 0] = anchors
        hidden = self._network.embed(ids.flatten())
        if self._weights.mask is not None:
            hidden.view(*ids.shape, -1)[:, 1:] = self._weights.mask
        if self._shape.embedding_scale != 1.0:
            hidden *= self._shape.embedding_scale
        if self._weights.convs:
            hidden = self._with_convs(hidden, num_rows, plan)
        else:
            hidden = self._network.forward(hidden, plan, self.cache)
        return hidden.view(*ids.shape, -1)[:, int(self._shape.drafts_own_place) :]

    def choose(self, anchors: Tensor, hidden: Tensor) -> Drafted:
        """The drafts of rows [S, drafts, hidden]."""
        num_seqs, depth, size = hidden.shape
        rows = hidden.reshape(-1, size)
        eps = self._shape.network.rms_norm_eps
        logits = self._head.logits(rows, eps)
        if self._weights.pairs is not None and self._shape.selector is not None:
            normed = self._network.final_norm(rows).view(hidden.shape)
            top_k, blocks = self._shape.selector.top_k, logits.view(num_seqs, depth, -1)
            return Drafted(*walk(self._weights.pairs, top_k, anchors, normed, blocks))
        ids, confidence = best_tokens(logits)
        if self._weights.token_ids is not None:
            ids = self._weights.token_ids[ids]
        return Drafted(ids.view(num_seqs, depth), confidence.view(num_seqs, depth))

    def _with_convs(self, hidden: Tensor, num_rows: int, plan: AttentionPlan | PagedPlan) -> Tensor:
        """The layers of DFlash 2: `x += conv(branch(conv(norm(x))))`."""
        config, eps = self._shape.network, self._shape.network.rms_norm_eps
        assert self._shape.convolution is not None
        for mixer, layer, convs, (keys, values) in zip(
            config.attentions, self._model.layers, self._weights.convs, self.cache.layers,
            strict=True,
        ):  # fmt: skip
            normed = rms_norm(hidden, layer.input_norm, eps)
            conv = BranchConv(self._shape.convolution, convs[0], normed, num_rows)
            mixed = attend(
                linear(conv.before(normed), layer.qkv, layer.qkv_bias), layer.qk_norm, eps,
                self._angles, keys, values, plan, scale=mixer.scale, window=mixer.window,
                sees_ahead=mixer.sees_ahead,
            )  # fmt: skip
            hidden = hidden + conv.behind(linear(mixed, layer.out, layer.out_bias))
            normed = rms_norm(hidden, layer.mlp_norm, eps)
            conv = BranchConv(self._shape.convolution, convs[1], normed, num_rows)
            gated = silu_mul(linear(conv.before(normed), layer.gate_up))
            hidden = hidden + conv.behind(linear(gated, layer.down))
        return hidden


def _nothing(anchors: Tensor) -> Drafted:
    """No drafts, for a pass that only takes rows in."""
    return Drafted(anchors.new_empty((anchors.shape[0], 0)))
