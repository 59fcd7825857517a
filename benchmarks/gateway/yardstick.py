"""The current speed of the machine.

Owns a fixed piece of work. Other programs on the same cores lengthen even CPU time (they share
caches and, often, the core itself), so each run reports how long this work took.
"""

from __future__ import annotations

import json
import time
from typing import Final

_ROUNDS: Final = 400
_CHUNK: Final = {
    "id": "chatcmpl-0",
    "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}] * 16,
}


def yardstick_ms() -> float:
    """CPU milliseconds of writing and reading the same JSON 400 times."""
    began_s = time.process_time()
    for _ in range(_ROUNDS):
        json.loads(json.dumps(_CHUNK))
    return (time.process_time() - began_s) * 1e3
