"""The weights of a Qwen3 dense model, merged as the forward pass wants them.

Owns the names of the published checkpoints, the merged layout (one matrix for q, k and v, one for
gate and up) and which of them may be in 8 bits: the four products of a layer, not its norms, never
the embedding nor the head. Must not know files (`checkpoint.py`), nor how the weights are used.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from kernels.fp8 import BLOCK, FP8, Fp8Weight, quantize_weight
from kernels.linear import Weight
from protocol.errors import ConfigError
from workers.engine.load.checkpoint import Checkpoint, Report
from workers.engine.load.file_stream import FileStream
from workers.engine.load.quantize import Stored
from workers.engine.models.model_config import Qwen3Config


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; H query heads, KV key heads, D dimensions each, I inner width.

    `qkv` [(H + 2 KV) D, hidden], `qk_norm` [H + KV, D] one row per head, `out` [hidden, H D],
    `gate_up` [2 I, hidden], `down` [hidden, I], these four possibly in 8 bits; biases are None
    unless the model has them.
    """

    input_norm: Tensor
    qkv: Weight
    qkv_bias: Tensor | None
    qk_norm: Tensor
    out: Weight
    out_bias: Tensor | None
    post_norm: Tensor
    gate_up: Weight
    down: Weight


@dataclass(frozen=True, slots=True)
class Qwen3Weights:
    """The whole network. `head` is `embedding` itself if the model ties them."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor

    def num_bytes(self) -> int:
        """What all weights take, a tied head counted once."""
        return sum(t.nbytes for t in {id(t): t for t in self._tensors()}.values())

    @property
    def is_fp8(self) -> bool:
        """Whether any product is in 8 bits."""
        return any(isinstance(weight, Fp8Weight) for weight in self._tensors())

    def _tensors(self) -> Iterator[Weight]:
        yield from (self.embedding, self.norm, self.head)
        for layer in self.layers:
            for name in LayerWeights.__slots__:
                tensor = getattr(layer, name)
                if tensor is not None:
                    yield tensor


def quantised(layer: LayerWeights) -> LayerWeights:
    """The layer with its products in 8 bits, scaled by row. Three mantissa bits change a weight by
    at most 2^-4 of itself; `kernels.fp8` has the rule.
    """
    return with_products(layer, _quantised)


def with_products(layer: LayerWeights, change: Callable[[Weight], Weight]) -> LayerWeights:
    """The layer with each of its products changed, one after the other."""
    return replace(
        layer,
        qkv=change(layer.qkv),
        out=change(layer.out),
        gate_up=change(layer.gate_up),
        down=change(layer.down),
    )


def _quantised(weight: Weight) -> Weight:
    return quantize_weight(weight) if isinstance(weight, Tensor) else weight


def load_weights(
    model_dir: Path,
    config: Qwen3Config,
    device: torch.device,
    dtype: torch.dtype,
    report: Report,
    *,
    fp8: bool = False,
) -> Qwen3Weights:
    """Read all weights of `model_dir` to `device` as `dtype`; those in 8 bits stay so.

    `fp8`: the layers' products become 8 bits, layer by layer, so that no more than one layer is
    ever there in both forms. Raises `ConfigError` naming the file or tensor that is missing,
    misshapen or not ours.
    """
    stream = FileStream(device) if device.type == "cuda" else None
    with Checkpoint(model_dir, stream) as checkpoint:
        reader = _Reader(checkpoint, config, device, dtype, report, fp8=fp8)
        weights = reader.all()
        reader.check_nothing_left(model_dir)
    return weights


class _Reader:
    """Reads tensors in order and remembers which it took."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: Qwen3Config,
        device: torch.device,
        dtype: torch.dtype,
        report: Report,
        *,
        fp8: bool,
    ) -> None:
        self._fp8 = fp8
        self._checkpoint = checkpoint
        self._config = config
        self._device = device
        self._dtype = dtype
        self._report = report
        self._taken: set[str] = set()
        self._reported_percent = -1

    def all(self) -> Qwen3Weights:
        config = self._config
        vocabulary = (config.vocab_size, config.hidden_size)
        embedding = self._matrix("model.embed_tokens.weight", *vocabulary)
        layers = []
        for index in range(config.num_layers):
            self._report_progress()
            layer = self._layer(f"model.layers.{index}.")
            if self._fp8:
                self._checkpoint.settle(self._report_progress)
                layer = quantised(layer)
            layers.append(layer)
        norm = self._take("model.norm.weight", config.hidden_size)
        head = embedding if config.tied else self._matrix("lm_head.weight", *vocabulary)
        self._checkpoint.settle(self._report_progress)
        return Qwen3Weights(embedding, tuple(layers), norm, head)

    def check_nothing_left(self, model_dir: Path) -> None:
        """Refuse unused tensors: they mean a model that would run wrongly."""
        ignored = {"lm_head.weight"} if self._config.tied else set()
        for name in sorted(self._checkpoint.names - self._taken - ignored):
            if not name.endswith("rotary_emb.inv_freq"):
                raise ConfigError(
                    f"{model_dir} has a tensor {name} that its config.json does not explain: "
                    "take weights and config of the same Qwen3 dense model"
                )

    def _layer(self, prefix: str) -> LayerWeights:
        config = self._config
        hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        query, key = config.num_heads * head_dim, config.num_kv_heads * head_dim
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        q_norm = self._take(f"{attention}q_norm.weight", head_dim)
        k_norm = self._take(f"{attention}k_norm.weight", head_dim)
        sides = (("q", query), ("k", key), ("v", key))
        return LayerWeights(
            input_norm=self._take(f"{prefix}input_layernorm.weight", hidden),
            qkv=self._product(hidden, *((f"{attention}{s}_proj", n) for s, n in sides)),
            qkv_bias=self._merge(*((f"{attention}{s}_proj.bias", (n,)) for s, n in sides))
            if config.attention_bias
            else None,
            qk_norm=torch.cat(
                (q_norm.expand(config.num_heads, -1), k_norm.expand(config.num_kv_heads, -1))
            ),
            out=self._product(query, (f"{attention}o_proj", hidden)),
            out_bias=self._take(f"{attention}o_proj.bias", hidden)
            if config.attention_bias
            else None,
            post_norm=self._take(f"{prefix}post_attention_layernorm.weight", hidden),
            gate_up=self._product(hidden, *((f"{mlp}{s}_proj", inner) for s in ("gate", "up"))),
            down=self._product(inner, (f"{mlp}down_proj", hidden)),
        )

    def _product(self, depth: int, *modules: tuple[str, int]) -> Weight:
        """The weight of a product, [rows of all modules, depth], as the checkpoint holds it."""
        weights = [(f"{name}.weight", (num_rows, depth)) for name, num_rows in modules]
        stored, names = self._config.stored, self._checkpoint.names
        scaled = [name for name, _ in modules if name + stored.scale_suffix in names]
        if stored is Stored.DENSE or not scaled:
            return self._merge(*weights)
        for name, num_rows in modules:
            self._check_fp8(name, num_rows, is_last=name == modules[-1][0])
        values = self._merge(*weights, dtype=FP8)
        shapes = [_scales_shape(stored, num_rows, depth) for _, num_rows in modules]
        suffixed = [name + stored.scale_suffix for name, _ in modules]
        scales = self._merge(*zip(suffixed, shapes, strict=True), dtype=torch.float32)
        return Fp8Weight(values, scales.view(-1) if stored is Stored.FP8_ROWS else scales)

    def _check_fp8(self, name: str, num_rows: int, *, is_last: bool) -> None:
        """Check a module that has scales, or whose neighbours in a merged matrix have some."""
        weight = f"{name}.weight"
        if weight in self._checkpoint.names and not self._checkpoint.is_fp8(weight):
            raise ConfigError(
                f"{weight} is not in 8 bits, but its scales or its neighbours are: take another "
                "quantised model, or the bf16 one with quantization = 'fp8'"
            )
        if self._config.stored is Stored.FP8_BLOCKS and num_rows % BLOCK and not is_last:
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
            self._report("load", done / total, f"{done / 2**30:.1f} of {total / 2**30:.1f} GiB")

    def _take(self, name: str, *shape: int) -> Tensor:
        tensor = self._checkpoint.read(name, shape)
        self._taken.add(name)
        # copy=True: what safetensors gives may be a view of the mapped file.
        return tensor.to(self._device, self._dtype, copy=True)


def _scales_shape(stored: Stored, num_rows: int, depth: int) -> tuple[int, int]:
    """The shape of one module's scales in the checkpoint."""
    if stored is Stored.FP8_ROWS:
        return num_rows, 1
    return -(-num_rows // BLOCK), -(-depth // BLOCK)
