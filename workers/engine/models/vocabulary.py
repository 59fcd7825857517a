"""The embedding and the head, which have a row for each token: where and in which form they are.

Owns the change from what a checkpoint holds. Must not know files, layers or the free memory of a
device.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from kernels import int4
from kernels.fp8 import Fp8Weight, quantize_weight
from kernels.int4 import Int4Weight
from kernels.linear import Weight, norm_linear
from workers.engine.memory.host_pool import HostPool
from workers.memory_room import host_room

_INT4_ROWS: Final = 256
_FP8_ROWS: Final = 128
"""Rows that a head multiplies at a time: for more of them products in 4 bits widen the matrix, and
in 8 bits those that the library cannot scale. A 27B's would take 2.4 GiB, of which the probe of the
largest step sees nothing where the rows are those of drafts.
"""

_SCALED_ROWS: Final = 16
"""The library scales products in 8 bits if the number of a weight's rows is a multiple."""

HeadForm = Literal["auto", "fp8", "int4"]


@dataclass(frozen=True, slots=True)
class VocabularyForm:
    """How the embedding and the head are kept. "auto" is the dtype of the rows. `on_host`: the
    embedding of a network on a card is in the host's memory, of which a step reads one row for each
    of its tokens.
    """

    head: HeadForm = "auto"
    on_host: bool = False

    def changed(self, embedding: Tensor, head: Tensor) -> tuple[Tensor, Weight]:
        """The embedding and the head in this form; `head` may be `embedding` itself. Raises
        `ConfigError` if the host lacks the memory.
        """
        kept = _narrowed(head, self.head)
        if not self.moves(embedding.device):
            return embedding, kept
        moved = _on_host(embedding)
        return moved, moved if kept is embedding else kept

    def moves(self, device: torch.device) -> bool:
        """Whether the embedding of a network on `device` is elsewhere."""
        return self.on_host and device.type == "cuda"


AS_STORED: Final = VocabularyForm()


def norm_before(head: Weight, norm: Tensor, dtype: torch.dtype) -> Tensor:
    """The norm before the head. Products in 4 or 8 bits take one in the dtype of the rows."""
    return norm.to(dtype) if isinstance(head, Fp8Weight | Int4Weight) else norm


def logits(
    hidden: Tensor, norm: Tensor, eps: float, head: Weight, *, invariant: bool = False
) -> Tensor:
    """`norm_linear` [rows, vocab] by a head, without a wide copy of a narrow one."""
    most = _most_rows(head, hidden.dtype)
    if not 0 < most < hidden.shape[0]:
        return norm_linear(hidden, norm, eps, head, invariant=invariant)
    starts = range(0, hidden.shape[0], most)
    rows = (hidden[start : start + most] for start in starts)
    return torch.cat([norm_linear(part, norm, eps, head, invariant=invariant) for part in rows])


def _most_rows(head: Weight, dtype: torch.dtype) -> int:
    """The most rows that the head multiplies at a time; 0 for any number."""
    if isinstance(head, Int4Weight):
        return _INT4_ROWS
    is_wide = not isinstance(head, Fp8Weight)
    is_scaled = dtype == torch.bfloat16 and head.shape[0] % _SCALED_ROWS == 0
    return 0 if is_wide or is_scaled else _FP8_ROWS


def _narrowed(head: Tensor, form: HeadForm) -> Weight:
    if form == "auto":
        return head
    return quantize_weight(head) if form == "fp8" else int4.quantize(head)


def _on_host(embedding: Tensor) -> Tensor:
    pool = HostPool(embedding.nbytes, host_room(), locks=True, asked='embedding = "host"')
    kept = pool.tensor(tuple(embedding.shape), embedding.dtype)
    kept.copy_(embedding)
    return seen_by(embedding.device, kept)


def seen_by(device: torch.device, kept: Tensor) -> Tensor:
    """The page-locked tensor `kept` as one of the current card `device`, which reads it over its
    bus ("Unified Addressing" of the CUDA runtime's manual). Kernels and graphs then need not know
    where it is. Raises `DriverError` if the card does not see such memory.
    """
    from kernels.cuda.driver import card_address  # noqa: PLC0415 - only hosts with a card have it

    seen = torch.as_tensor(_Locked(kept, card_address(kept.data_ptr())), device=device)
    return seen.view(kept.dtype).view(kept.shape)


class _Locked:
    """The bytes of a page-locked tensor, by the protocol that torch reads. torch holds this object
    as long as the tensor that it makes of it.
    """

    def __init__(self, kept: Tensor, address: int) -> None:
        self._kept = kept
        self._address = address

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the protocol; it has no name for bfloat16."""
        return {
            "shape": (self._kept.nbytes,),
            "typestr": "|u1",
            "data": (self._address, False),
            "strides": None,
            "version": 3,
        }
