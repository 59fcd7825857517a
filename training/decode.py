"""Greedy answers to many prompts at once, for the evaluation.

Owns a plain key-value cache per batch of prompts of similar length, in float32, as the model is
served on a CPU. Must not know text or the checks.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from training.model import Qwen3, TrainedLayer

_MAX_PROMPT_TOKENS: Final = 131_072
_MAX_SEQUENCES: Final = 512
_CHECK_EVERY: Final = 16


def generate(
    network: Qwen3, prompts: Sequence[Sequence[int]], max_new_tokens: int, eos_id: int
) -> list[list[int]]:
    """The ids of each answer, with `eos_id` at its end if it came within `max_new_tokens`."""
    answers: list[list[int]] = [[] for _ in prompts]
    with torch.inference_mode():
        for indexes in _batches(prompts):
            rows = _Batch(network, [prompts[i] for i in indexes], max_new_tokens).run(eos_id)
            for index, row in zip(indexes, rows, strict=True):
                length = row.index(eos_id) + 1 if eos_id in row else len(row)
                answers[index] = row[:length]
    return answers


def _batches(prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Indexes of prompts of similar lengths, within the limits."""
    batch: list[int] = []
    for index in sorted(range(len(prompts)), key=lambda i: len(prompts[i])):
        tokens = (len(batch) + 1) * len(prompts[index])
        if batch and (tokens > _MAX_PROMPT_TOKENS or len(batch) == _MAX_SEQUENCES):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


class _Batch:
    """Prompts [B, longest], padded on the right, whose answers overwrite the padding's cache."""

    def __init__(
        self, network: Qwen3, prompts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> None:
        self._network = network
        self._device = next(network.parameters()).device
        self._lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        longest = max(map(len, prompts))
        self._tokens = torch.tensor(
            [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=self._device
        )
        self._max_new = max_new_tokens
        shape = network.shape
        size = (len(prompts), shape.num_kv_heads, longest + max_new_tokens, shape.head_dim)
        self._keys = [torch.zeros(size, device=self._device) for _ in range(shape.num_layers)]
        self._values = [torch.zeros_like(keys) for keys in self._keys]

    def run(self, eos_id: int) -> list[list[int]]:
        """Up to `max_new_tokens` ids for each prompt; what follows an `eos_id` is noise."""
        rows = torch.arange(len(self._tokens), device=self._device)
        hidden = self._prefill()[rows, self._lengths - 1]
        produced: list[Tensor] = []
        has_ended = torch.zeros_like(rows, dtype=torch.bool)
        for step in range(self._max_new):
            token = F.linear(hidden, self._network.model.embed_tokens.weight).argmax(-1)
            produced.append(token)
            has_ended |= token == eos_id
            if step % _CHECK_EVERY == _CHECK_EVERY - 1 and bool(has_ended.all()):
                break
            hidden = self._decode(token, self._lengths + step)
        return [[int(token) for token in row] for row in torch.stack(produced, 1).tolist()]

    def _prefill(self) -> Tensor:
        """Hidden states [B, longest, hidden]; attention is causal, so the padding has no effect."""
        longest = self._tokens.shape[1]
        angles = self._network.angles(torch.arange(longest, device=self._device))
        hidden = self._network.model.embed_tokens(self._tokens)
        for index, layer in enumerate(self._network.model.stack()):
            projected = layer.self_attn.project(layer.input_layernorm(hidden), angles)
            query, key, value = (tensor.transpose(1, 2) for tensor in projected)
            self._keys[index][:, :, :longest] = key
            self._values[index][:, :, :longest] = value
            repeats = query.shape[1] // key.shape[1]
            out = F.scaled_dot_product_attention(
                query,
                key.repeat_interleave(repeats, 1),
                value.repeat_interleave(repeats, 1),
                is_causal=True,
            )
            hidden = self._rest_of_layer(layer, hidden, out.transpose(1, 2))
        return self._normed(hidden)

    def _decode(self, token: Tensor, position: Tensor) -> Tensor:
        """Hidden states [B, hidden] of one more token [B] at `position` [B]."""
        angles = self._network.angles(position)
        rows = torch.arange(len(token), device=self._device)
        size = self._keys[0].shape[2]
        is_seen = torch.arange(size, device=self._device) <= position[:, None]
        bias = torch.zeros(is_seen.shape, device=self._device).masked_fill_(~is_seen, -torch.inf)
        hidden = self._network.model.embed_tokens(token)
        for index, layer in enumerate(self._network.model.stack()):
            projected = layer.self_attn.project(layer.input_layernorm(hidden), angles)
            query, key, value = projected
            keys, values = self._keys[index], self._values[index]
            keys[rows, :, position] = key
            values[rows, :, position] = value
            grouped = query.view(len(token), keys.shape[1], -1, query.shape[-1])
            scores = grouped @ keys.mT / query.shape[-1] ** 0.5 + bias[:, None, None]
            out = (scores.softmax(-1) @ values).flatten(1, 2)
            hidden = self._rest_of_layer(layer, hidden, out)
        return self._normed(hidden)

    def _rest_of_layer(self, layer: TrainedLayer, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = hidden + layer.self_attn.o_proj(attended.flatten(-2))
        out: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return out

    def _normed(self, hidden: Tensor) -> Tensor:
        out: Tensor = self._network.model.norm(hidden)
        return out
