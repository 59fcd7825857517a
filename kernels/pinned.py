"""Numbers of the host on their way to a device.

Owns how they are copied without waiting. Must not know what they are.
"""

import numpy as np
import torch
from torch import Tensor


def to_device(
    values: np.ndarray[tuple[int, ...], np.dtype[np.int32]], device: torch.device
) -> Tensor:
    """Copy `values` to the device without waiting; on a card behind the steps in flight. A large
    copy from pageable memory would wait for these.
    """
    source = torch.from_numpy(values)
    if device.type == "cuda":
        source = source.pin_memory()
    return source.to(device, non_blocking=True)
