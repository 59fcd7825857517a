"""How fast the machine is at the moment.

Owns a fixed piece of work. Neighbours on the same cores make even CPU time longer (they share
caches and, often, the core itself), so each run says how long this took beside it.
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
