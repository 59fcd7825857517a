"""What drafts will take of a card, before anything is loaded: from descriptions alone.

Owns the sums for each kind of drafter, exact but for norms, and bounds where only the tensors tell.
Must not know files.
"""

from typing import Final

from workers.engine.drafting.description import DFlashShape, Eagle3Shape, MtpShape, Shape
from workers.engine.load.kept_modules import NOTHING_KEPT
from workers.engine.memory.forecast import DraftDemand, layer_bytes
from workers.engine.models.description import ModelDescription
from workers.engine.models.state_slots import MOST_TAKEN_BACK

_HALF: Final = 2
_SCALE_BYTES: Final = 4

ROWS_OF_A_PASS: Final = 8
"""How many tensors of the size of a step's hidden states a drafter's pass holds at once."""


def draft_demand(
    shape: Shape | None, target: ModelDescription, *, fp8: bool, has_narrow_head: bool = False
) -> DraftDemand:
    """The demand of the drafter `shape`; if that is None, the demand of drafts from earlier text.
    `fp8`: the card has 8-bit floats, in which drafting networks compute. `has_narrow_head`: the
    target's head is in 8 or 4 bits already.
    """
    ring = target.ring_bytes(_HALF, MOST_TAKEN_BACK) if target.delta_rules else 0
    if shape is None:
        return DraftDemand(ring_bytes=ring)
    taps = 0 if isinstance(shape, MtpShape) else len(shape.taps)
    return DraftDemand(
        weights_bytes=_weights(shape, target, fp8=fp8, copies=fp8 and not has_narrow_head),
        token_bytes=_HALF * shape.network.token_numbers,
        row_bytes=_HALF * target.hidden_size * (taps + ROWS_OF_A_PASS),
        ring_bytes=ring,
    )


def _weights(shape: Shape, target: ModelDescription, *, fp8: bool, copies: bool) -> int:
    """`copies`: drafts are chosen by a copy of the target's head in 8 bits."""
    network, hidden = shape.network, shape.network.hidden_size
    # The MTP head of a 4-bit checkpoint is mostly in 16 bits, and no list of modules in the
    # checkpoint names it.
    form = "fp8" if fp8 or network.stored.is_fp8 else "bfloat16"
    layers = sum(layer_bytes(network, layer, form, NOTHING_KEPT, 0) for layer in network.layers)
    match shape:
        case MtpShape():
            products = layers + _HALF * 2 * hidden * hidden
            return products + _copy(target.vocab_size // target.head_ranks, hidden, fp8=copies)
        case DFlashShape():
            own = _own_head(shape.vocab_size, target)
            rows = shape.vocab_size // (1 if own else target.head_ranks)
            return (
                layers
                + _HALF * hidden * len(shape.taps) * target.hidden_size
                + _context(network, fp8=fp8)
                + own
                + _copy(rows, hidden, fp8=fp8)
                + _extras(shape)
            )
        case Eagle3Shape():
            (layer,) = network.layers
            rows, columns = network.matrices(layer)[0]
            return (
                # The product of queries, keys and values reads two vectors.
                _HALF * (network.layer_weights + rows * columns)
                + _HALF * hidden * len(shape.taps) * target.hidden_size
                + _HALF * shape.vocab_size * hidden
            )


def _copy(rows: int, columns: int, *, fp8: bool) -> int:
    """The output head in 8 bits, by which drafts are chosen."""
    return rows * (columns + _SCALE_BYTES) if fp8 else 0


def _own_head(vocab_size: int, target: ModelDescription) -> int:
    """A drafter of some tokens only has a head for these."""
    return 0 if vocab_size == target.vocab_size else _HALF * vocab_size * target.hidden_size


def _context(network: ModelDescription, *, fp8: bool) -> int:
    """The rows of keys and values of all layers, a second time as one matrix."""
    hidden = network.hidden_size
    row = hidden + _SCALE_BYTES if fp8 else _HALF * hidden
    return network.token_numbers * row


def _extras(shape: DFlashShape) -> int:
    """What DFlash 2 adds: convolutions and vectors of pairs."""
    hidden, total = shape.network.hidden_size, 0
    if shape.convolution is not None:
        size, group = shape.convolution.size, shape.convolution.group
        rows = 2 * size * (hidden // group)
        total += shape.network.num_layers * 2 * hidden * (rows + 2 * size)
    if shape.selector is not None:
        total += shape.selector.rank * (2 * shape.vocab_size + hidden)
    return _HALF * total
