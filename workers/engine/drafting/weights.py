"""The tensors of a drafter's checkpoint, read for its target.

Owns what drafters' checkpoints have in common: layers and a norm like a model's, an embedding and a
head that are the target's or their own, and a vocabulary that may be a part of the target's. Must
not know how a drafter computes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kernels.fp8 import quantize_weight
from protocol.errors import ConfigError
from workers.engine.load.checkpoint import Checkpoint
from workers.engine.load.file_stream import FileStream
from workers.engine.models.description import ModelDescription
from workers.engine.models.network import Network
from workers.engine.models.vocabulary import logits, norm_before
from workers.engine.models.weight_reader import WeightReader
from workers.engine.models.weights import LayerWeights, ModelWeights
from workers.engine.parallel.ranks import Ranks

_PREFIXES: Final = ("", "model.")
_EMBEDDING: Final = "embed_tokens.weight"
_HEAD: Final = "lm_head.weight"
_OFFSETS: Final = "d2t"
_DRAFTED: Final = "t2d"
"""A mask of the target's tokens that the drafter has. It is not read: `d2t` says the same."""


class DrafterReader(WeightReader):
    """Reads to the target's device, in its dtype. All methods raise `ConfigError` for a tensor that
    is missing or misshapen.
    """

    def __init__(self, checkpoint: Checkpoint, config: ModelDescription, target: Network) -> None:
        embedding = target.weights.embedding
        super().__init__(
            checkpoint, config, embedding.device, embedding.dtype, lambda *_: None, None
        )
        self._target = target

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds it."""
        return name in self._checkpoint.names

    def find(self, end: str) -> str:
        """The one tensor's name that ends with `end`, `.weight` aside. Raises `ConfigError`."""
        found = [
            name for name in self._checkpoint.names if name.removesuffix(".weight").endswith(end)
        ]
        if len(found) != 1:
            raise ConfigError(
                f"this drafter has {len(found)} tensors {end}, not one: fetch it again"
            )
        return found[0]

    def prefix(self, probe: str) -> str:
        """The prefix of the names of tensors; `probe` is one such name without its prefix."""
        return next((each for each in _PREFIXES if each + probe in self._checkpoint.names), "")

    def beside_target(self, prefix: str, first: int, norm: str) -> ModelWeights:
        """The weights of a model whose layers' names begin with `prefix`, the `first` one's number
        behind it, and whose norm is the module `norm`; with the embedding and the head that the
        target has in memory: beside them lie the target's own in the file.
        """
        shared = self._target.weights
        norms = self.norm(norm, self._config.hidden_size)
        return ModelWeights(shared.embedding, self.layers(prefix, first), norms, shared.head)

    def model(self, prefix: str, vocab_size: int) -> ModelWeights:
        """The weights of a model whose layers' names begin with `prefix`; see `around`."""
        return self.around(self.layers(prefix), prefix, vocab_size)

    def around(
        self, layers: tuple[LayerWeights, ...], prefix: str, vocab_size: int
    ) -> ModelWeights:
        """The weights of a model with these `layers` and the norm `{prefix}norm`. Embedding and
        head are the target's, unless the checkpoint has its own; its head has `vocab_size` tokens.
        """
        hidden, shared = self._config.hidden_size, self._target.weights
        own = [name for name in (prefix + _EMBEDDING, _EMBEDDING) if self.has(name)]
        rows = self._target.config.vocab_size
        embedding = self.tensor(own[0], rows, hidden) if own else shared.embedding
        own = [name for name in (_HEAD, prefix + _HEAD) if self.has(name)]
        head = self.tensor(own[0], vocab_size, hidden) if own else shared.head
        return ModelWeights(embedding, layers, self.norm(f"{prefix}norm", hidden), head)

    def token_ids(self, vocab_size: int) -> Tensor | None:
        """The target's id of each of the drafter's tokens, int64 [vocab_size]; None if both have
        the same vocabulary. Raises `ConfigError` if the checkpoint does not say.
        """
        if not self.has(_OFFSETS):
            if vocab_size != self._target.config.vocab_size:
                raise ConfigError(
                    f"this drafter has {vocab_size} tokens and no {_OFFSETS}, which says what they "
                    "are in the model: fetch it again"
                )
            return None
        if self.has(_DRAFTED):
            self._taken.add(_DRAFTED)
        offsets = self.tensor(_OFFSETS, vocab_size, dtype=torch.int64)
        return offsets + torch.arange(vocab_size, device=offsets.device)


@contextmanager
def reading(
    path: Path, config: ModelDescription, target: Network, only: str = ""
) -> Iterator[DrafterReader]:
    """A reader of the checkpoint in `path`. Raises `ConfigError` at the end if tensors whose names
    begin with `only` were not read.
    """
    device = target.device
    stream = FileStream(device) if device.type == "cuda" else None
    with Checkpoint(path, stream) as checkpoint:
        reader = DrafterReader(checkpoint, config, target)
        yield reader
        reader.settle()
        reader.check_nothing_left(path, only)


def ranks_of_head(model: ModelWeights, target: Network) -> Ranks | None:
    """The ranks that hold the rows of a drafter's head together: those of its target, if the head
    is the target's and they divide it. None: this process has all rows.
    """
    is_cut = model.head is target.weights.head and target.config.head_ranks > 1
    return target.ranks if is_cut else None


class DraftingHead:
    """The norm and the head of the drafter `model`, by which drafts are chosen: in 8 bits with
    `fp8`, by a copy of `num_bytes`. A head in 8 or 4 bits serves as it is. `ranks`: see
    `ranks_of_head`.
    """

    def __init__(self, model: ModelWeights, ranks: Ranks | None, *, fp8: bool) -> None:
        self._head, self.num_bytes = model.head, 0
        self._ranks = ranks
        if fp8 and isinstance(model.head, Tensor):
            self._head = quantize_weight(model.head)
            self.num_bytes = self._head.nbytes
        self._norm = norm_before(self._head, model.norm, model.embedding.dtype)

    def logits(self, hidden: Tensor, eps: float) -> Tensor:
        """The logits of last hidden states [rows, hidden]."""
        found = logits(hidden, self._norm, eps, self._head)
        return found if self._ranks is None else self._ranks.joined(found)


def own_bytes(model: ModelWeights, target: ModelWeights, *others: Tensor | None) -> int:
    """Bytes of a drafter's weights, without those that it shares with the target."""
    shared = {id(weight): weight for weight in (target.embedding, target.head)}
    held = {id(weight) for weight in (model.embedding, model.head)}
    theirs = sum([weight.nbytes for key, weight in shared.items() if key in held])
    return model.num_bytes() - theirs + sum([t.nbytes for t in others if t is not None])
