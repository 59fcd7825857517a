"""Drafts that are accepted as often as a schedule says, at the cost of a real drafter.

Owns the schedules, and drafters without trained weights for models without a drafter. Must not know
the measurement.

A model whose head is zero always outputs token 0, at the speed of any other model. If a drafter
drafts 0 with the chance of a place, and 1 otherwise, its drafts are accepted exactly that often.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

import torch

from protocol.errors import ConfigError
from workers.engine.drafting.description import read_drafter
from workers.engine.drafting.drafter import Capture, CapturesDrafts, Drafted, Drafter, DraftStep
from workers.engine.drafting.dummy import drawn_drafter
from workers.engine.models.description import Experts, ModelDescription
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network

SCHEDULES: Final[dict[str, tuple[float, ...]]] = {
    # vLLM 0.26's `synthetic` rejection at a mean length of 6.3.
    "vllm": (*[1.0] * 5, 0.3, *[0.0] * 9),
    # The same length at a constant rate.
    "constant": (0.854,) * 15,
    # What operators measured of a 27B: 0.89, 0.64 and 0.16 of the drafts at each place.
    "mtp": (0.89, 0.64 / 0.89, 0.16 / 0.64, *[0.0] * 12),
}

_DFLASH: Final[dict[str, Any]] = {
    "architectures": ["DFlashDraftModel"], "block_size": 16, "num_hidden_layers": 5,
    "layer_types": ["full_attention"] * 5,
}  # fmt: skip
"""The shape of the published drafter of Qwen3-8B besides the target's own."""


def rates_of(text: str) -> tuple[float, ...]:
    """A schedule by its name, or chances separated by commas, each of a draft whose predecessors
    were accepted; the last one is repeated. Raises `ConfigError`.
    """
    if text in SCHEDULES:
        return SCHEDULES[text]
    try:
        rates = tuple([float(part) for part in text.split(",")])
    except ValueError:
        rates = (-1.0,)
    if not all(0.0 <= rate <= 1.0 for rate in rates):
        raise ConfigError(f"--acceptance {text!r}: one of {list(SCHEDULES)}, or chances by commas")
    return (*rates, *rates[-1:] * (15 - len(rates)))


def expected_length(rates: Sequence[float], depth: int) -> float:
    """The expected tokens of a pass that verifies `depth` drafts."""
    total, chance = 1.0, 1.0
    for rate in rates[:depth]:
        chance *= rate
        total += chance
    return total


@final
class SyntheticDrafter:
    """A `Drafter` that does the work of `inner`, and then drafts by `rates`."""

    def __init__(self, inner: Drafter, rates: Sequence[float], device: torch.device) -> None:
        self.name = f"{inner.name}, synthetic"
        self.max_depth = min(inner.max_depth, len(rates))
        self.taps = inner.taps
        self.reads_hidden = inner.reads_hidden
        self.cuts_anew = inner.cuts_anew
        self.num_bytes = inner.num_bytes
        self.token_bytes = inner.token_bytes
        self.take_in = inner.take_in
        self._inner = inner
        self._graphs = inner if isinstance(inner, CapturesDrafts) else None
        self._rates = torch.tensor(rates, dtype=torch.float32, device=device)
        self._generator = torch.Generator(device).manual_seed(0)

    @property
    def cache(self) -> KvCache | None:
        """See `Drafter`."""
        return self._inner.cache

    def take_cache(self, num_blocks: int, block_size: int) -> None:
        """See `Drafter`."""
        self._inner.take_cache(num_blocks, block_size)

    @property
    def has_pending_captures(self) -> bool:
        """See `CapturesDrafts`."""
        return self._graphs is not None and self._graphs.has_pending_captures

    def prepare(self, capture: Capture) -> bool:
        """See `CapturesDrafts`."""
        return self._graphs is not None and self._graphs.prepare(capture)

    def draft(self, step: DraftStep) -> Drafted:
        """See `Drafter`."""
        ids = self._inner.draft(step).ids
        rates = self._rates[: ids.shape[1]]
        drawn = torch.rand(ids.shape, generator=self._generator, device=ids.device)
        return Drafted((drawn >= rates).long(), rates.expand(ids.shape).contiguous())


def says_one_token(model: Network) -> None:
    """Make the model output token 0 always. Raises `ConfigError` for a model whose head is its
    embedding: its states would be zero, too.
    """
    if model.config.tied:
        raise ConfigError("synthetic drafts need a model whose head is not its embedding")
    head = model.weights.head
    if not isinstance(head, torch.Tensor):
        raise ConfigError("synthetic drafts need a model with a head in 16 bits")
    head.zero_()


def dummy_drafter(kind: str, target: Network, window: int, *, fp8: bool = False) -> Drafter:
    """A DFlash or an MTP head ("dflash", "mtp") of a shape that fits `target`, with drawn weights,
    with `fp8` as `load_drafter` has them on a card. Raises `ConfigError`.
    """
    config = target.config
    with tempfile.TemporaryDirectory() as made:
        path = Path(made)
        (path / "config.json").write_text(
            json.dumps(drafter_config(kind, config)), encoding="utf-8"
        )
        shape = read_drafter(path, config)
    return drawn_drafter(shape, target, window, fp8=fp8, draws_experts=True)


def drafter_config(kind: str, target: ModelDescription) -> dict[str, Any]:
    """The config.json of a drafter whose layers are like the target's."""
    heads, layer = target.attention, target.layers[0]
    common: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": target.dtype,
        "head_dim": heads.head_dim,
        "hidden_size": target.hidden_size,
        "intermediate_size": layer.mlp.width,
        "max_position_embeddings": target.max_position_embeddings,
        "num_attention_heads": heads.num_heads,
        "num_key_value_heads": heads.num_kv_heads,
        "num_target_layers": target.num_layers,
        "rms_norm_eps": target.rms_norm_eps,
        "rope_theta": heads.rope.theta,
        "tie_word_embeddings": False,
        "vocab_size": target.vocab_size,
    }
    if kind == "mtp":
        return {**common, **_mtp_config(target)}
    if kind != "dflash":
        raise ConfigError(f"--drafter {kind!r}: dflash or mtp beside dummy weights")
    return {**common, **_DFLASH, "dflash_config": {"mask_token_id": target.vocab_size - 1}}


def _mtp_config(target: ModelDescription) -> dict[str, Any]:
    """The config of one layer; for a hybrid, of gated attention with partial rotation, and with a
    mixture where its last layer has one, as in checkpoints.
    """
    counts = {"num_hidden_layers": 1, "mtp_num_hidden_layers": 1}
    if not target.delta_rules:
        return counts
    heads, rule = target.attention, target.delta_rules[0]
    mlp = target.layers[-1].mlp
    mixed: dict[str, Any] = {}
    if isinstance(mlp, Experts):
        mixed = {
            "architectures": ["Qwen3_5MoeForCausalLM"],
            "model_type": "qwen3_5_moe_text",
            "num_experts": mlp.num_experts,
            "num_experts_per_tok": mlp.routing.num_active,
            "moe_intermediate_size": mlp.width,
            "shared_expert_intermediate_size": mlp.shared_width,
        }
    return {
        **counts,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "layer_types": ["full_attention"],
        "linear_num_key_heads": rule.num_key_heads,
        "linear_num_value_heads": rule.num_value_heads,
        "rope_parameters": {
            "partial_rotary_factor": heads.rope.dim / heads.head_dim,
            "rope_theta": heads.rope.theta,
            "rope_type": "default",
        },
        **mixed,
    }
