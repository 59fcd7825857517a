"""Causal attention within each document of a flat batch.

A batch has one part, its rows, or two with different maximum lengths: some rows and a long one.
Owns the choice among three equivalent implementations: the library's kernel for sequences of
different lengths, the same kernel by its lower-level name, and a mask, which runs everywhere but
costs a row's length squared. Must not know the model.
"""

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

_MAX_ERROR: Final = 2e-2
"""Relative error; bfloat16 operands give up to 1e-2."""


class DocumentLayout(NamedTuple):
    """The positions of documents in `num_tokens` tokens, none longer than `row_length`. `bounds` [D
    + 1] int32, padded with empty documents at the end; `mask` [R, 1, L, L] is what attends to what,
    None where it is not needed.
    """

    bounds: Tensor
    mask: Tensor | None
    row_length: int
    num_tokens: int


Attention = Callable[[Tensor, Tensor, Tensor, DocumentLayout], Tensor]
"""(q [T, H, D], k [T, KV, D], v [T, KV, D], layout) -> [T, H, D]."""


def attend(
    attention: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layouts: tuple[DocumentLayout, ...],
) -> Tensor:
    """`attention` over parts that follow each other, one for each layout: [T, H, D]."""
    if len(layouts) == 1:
        return attention(query, key, value, layouts[0])
    sizes = [layout.num_tokens for layout in layouts]
    split = (torch.split(tensor, sizes) for tensor in (query, key, value))
    parts = zip(*split, layouts, strict=True)
    return torch.cat([attention(q, k, v, layout) for q, k, v, layout in parts])


def document_mask(positions: Tensor, row_length: int) -> Tensor:
    """[R, 1, L, L] of `positions` [T], which are 0 where a document begins."""
    number = (positions == 0).cumsum(0).view(-1, row_length)
    same = number[:, :, None] == number[:, None, :]
    return same.tril()[:, None]


def masked(query: Tensor, key: Tensor, value: Tensor, layout: DocumentLayout) -> Tensor:
    """With a mask over rows; any device and type."""

    def rows(tensor: Tensor) -> Tensor:
        return tensor.view(-1, layout.row_length, *tensor.shape[1:]).transpose(1, 2)

    key, value = _for_all_heads(query, key, value)
    out: Tensor = F.scaled_dot_product_attention(
        rows(query), rows(key), rows(value), attn_mask=layout.mask
    )
    return out.transpose(1, 2).flatten(0, 1)


def varlen(query: Tensor, key: Tensor, value: Tensor, layout: DocumentLayout) -> Tensor:
    """With `torch.nn.attention.varlen`; CUDA, 16 bits."""
    key, value = _for_all_heads(query, key, value)
    length = layout.row_length
    attend_varlen, causal = _find_varlen()
    out: Tensor = attend_varlen(
        query, key, value, layout.bounds, layout.bounds, length, length, **causal
    )
    return out


def flash(query: Tensor, key: Tensor, value: Tensor, layout: DocumentLayout) -> Tensor:
    """With the operation that `torch.nn.attention.varlen` uses."""
    key, value = _for_all_heads(query, key, value)
    length = layout.row_length
    out: Tensor = torch.ops.aten._flash_attention_forward(  # noqa: SLF001
        query, key, value, layout.bounds, layout.bounds, length, length, 0.0, True, False
    )[0]
    return out


def choose_attention(device: torch.device, num_heads: int, head_dim: int) -> Attention:
    """The fastest implementation that is correct on `device`, tested forward and backward."""
    if device.type != "cuda":
        return masked
    wanted = _try(masked, device, num_heads, head_dim)
    for attention in (varlen, flash):
        try:
            got = _try(attention, device, num_heads, head_dim)
        except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
            print(f"attention: {attention.__name__} does not run here: {error}", flush=True)
            continue
        errors = [float((a - b).norm() / b.norm()) for a, b in zip(got, wanted, strict=True)]
        if max(errors) < _MAX_ERROR:
            return attention
        print(f"attention: {attention.__name__} is wrong here: {errors}", flush=True)
    return masked


def _try(
    attention: Attention, device: torch.device, num_heads: int, head_dim: int
) -> tuple[Tensor, ...]:
    """Output and gradients over two rows of documents, with empty ones at the end."""
    row_length = 256
    starts = [0, 1, 100, 130, 256, 300]
    bounds = torch.tensor([*starts, *[2 * row_length] * 6], dtype=torch.int32, device=device)
    positions = torch.arange(2 * row_length, device=device)
    for start in starts:
        positions[start:] = torch.arange(2 * row_length - start, device=device)
    mask = document_mask(positions, row_length)
    layout = DocumentLayout(bounds, mask, row_length, 2 * row_length)
    generator = torch.Generator(device).manual_seed(0)
    shape = (2 * row_length, num_heads, head_dim)
    inputs = [
        torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
        for _ in range(4)
    ]
    query, key, value = (tensor.requires_grad_() for tensor in inputs[:3])
    out = attention(query, key, value, layout)
    gradients = torch.autograd.grad(out, (query, key, value), inputs[3])
    return tuple(tensor.detach().float() for tensor in (out, *gradients))


def _for_all_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """A copy of its keys and values for every query head, because kernels differ in their
    support.
    """
    repeats = query.shape[1] // key.shape[1]
    if repeats == 1:
        return key, value
    return key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)


@cache
def _find_varlen() -> tuple[Callable[..., Any], dict[str, Any]]:
    """The library's function (torch >= 2.10), and its version's keyword for causal attention. Its
    import takes 2.5 s, so that only those pay it that call it.
    """
    try:
        found: Callable[..., Any] = import_module("torch.nn.attention.varlen").varlen_attn
    except ImportError:
        return _missing, {}
    if "is_causal" in inspect.signature(found).parameters:
        return found, {"is_causal": True}
    return found, {"window_size": (-1, 0)}


def _missing(*_: object, **__: object) -> Tensor:
    raise NotImplementedError("this torch has no torch.nn.attention.varlen")
