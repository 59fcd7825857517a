"""Where a check of a kernel keeps what it found on a card.

Owns the place: a file in Triton's cache, named after all that may change the outcome. Must not know
what the file says, nor what is checked.
"""

from hashlib import sha256
from pathlib import Path

import torch
from triton.runtime.cache import get_cache_manager

from kernels.cuda.source import compiler_version


def mark_path(device: torch.device, name: str, *parts: str) -> Path:
    """The file `name` of this card, its driver, the compiler, and `parts`: sources, and what the
    kernel is compiled for.
    """
    from kernels.cuda.driver import version

    card = str(torch.cuda.get_device_properties(device))
    whole = card, str(version()), compiler_version(), *parts
    key = sha256("\0".join(whole).encode()).hexdigest()
    return Path(get_cache_manager(key).cache_dir) / name
