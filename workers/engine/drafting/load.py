"""The loading of a drafter from a directory, for a loaded target.

Owns the order: its kind, whether it fits the target, its weights. Must not know how it drafts.
"""

from pathlib import Path

import torch

from kernels.choose import has_fp8
from protocol.errors import ConfigError
from workers.engine.drafting.description import DFlashShape, MtpShape, names_head, read_drafter
from workers.engine.drafting.dflash import DFlash, read_dflash
from workers.engine.drafting.drafter import Drafter
from workers.engine.drafting.eagle3 import Eagle3Cell, read_eagle3
from workers.engine.drafting.mtp import MtpCell, read_mtp, share_of_mtp
from workers.engine.drafting.recurrent import RecurrentDrafter
from workers.engine.load.checkpoint import Checkpoint
from workers.engine.models.description import ModelDescription
from workers.engine.models.network import Network


def load_drafter(path: Path, target: Network, window: int, *, fp8: bool | None = None) -> Drafter:
    """The drafter in the directory `path`, for sequences of up to `window` tokens. Raises
    `ConfigError`, one line, before any weights are read if it is not for this target.

    With `fp8` DFlash and MTP heads compute in 8 bits, and choose by a copy of the head in 8 bits;
    None: where `drafts_in_fp8`. Where the target has ranks, each computes its share of an MTP
    head's layer, and the whole of other drafters; all load alike.
    """
    shape = read_drafter(path, target.config)
    fp8 = drafts_in_fp8(target) if fp8 is None else fp8
    if isinstance(shape, DFlashShape):
        return DFlash(shape, read_dflash(path, shape, target), target, window, fp8=fp8)
    if isinstance(shape, MtpShape):
        weights = read_mtp(path, shape, target)
        if target.ranks is not None:
            shape, weights = share_of_mtp(shape, weights, target.ranks.share)
        return RecurrentDrafter(MtpCell(shape, weights, target, window, fp8=fp8), target)
    cell = Eagle3Cell(shape, read_eagle3(path, shape, target), target, window)
    return RecurrentDrafter(cell, target)


def has_own_head(model_dir: Path, target: ModelDescription) -> bool:
    """Whether the model's checkpoint has an MTP head by its config.json. Raises `ConfigError` if it
    is none that we can run, or its tensors are missing: transformers leaves them out where it saves
    a model.
    """
    if not names_head(model_dir):
        return False
    shape = read_drafter(model_dir, target)
    assert isinstance(shape, MtpShape)
    own = shape.names.own
    with Checkpoint(model_dir) as checkpoint:
        if any(name.startswith(own) for name in checkpoint.names):
            return True
    raise ConfigError(f"{model_dir} has no tensors {own}*, though its config.json names a head")


def drafts_in_fp8(target: Network) -> bool:
    """Whether drafters compute in 8 bits: on cards with 8-bit floats, in half of the time. Drafts
    decide no text, and few of them change.
    """
    device, dtype = target.device, target.weights.embedding.dtype
    return device.type == "cuda" and has_fp8(device) and dtype == torch.bfloat16
