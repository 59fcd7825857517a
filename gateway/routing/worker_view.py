"""What is shown of a worker: a view of its state for metrics and the dashboard.

Owns the names of a worker's states. Must not know how the gateway learned of a state.
"""

from dataclasses import dataclass
from typing import Literal

from protocol.ids import WorkerId
from protocol.messages import EngineFacts, FaultKind, Load, Progress

WorkerState = Literal[
    "ready", "unproven", "draining", "starting", "down", "falling asleep", "asleep", "waking"
]
"""`unproven`: its engine is there, but has failed several requests and no token shows that it works
(`trust.py`).
"""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker for metrics and the dashboard. `running` counts this gateway's tickets only;
    `fault_kind` is None unless its engine has failed and no new one is ready. `progress` is the
    progress of its start; `is_open`: its breaker is open; `places` is how many sequences it takes
    at once. `due_s` is the forecast of the seconds until a sleeping one is awake, `sleep_trouble`
    says what keeps it. Of the `cached_blocks`, `host_blocks` are on its host alone.
    """

    worker_id: WorkerId
    name: str
    models: tuple[str, ...]
    state: WorkerState
    epoch: int
    engine: EngineFacts | None
    load: Load | None
    running: int
    kv_reserved_tokens: int
    cached_blocks: int
    fault: str
    fault_kind: FaultKind | None
    progress: Progress | None = None
    is_open: bool = False
    places: int = 0
    due_s: float = 0.0
    sleep_trouble: str = ""
    host_blocks: int = 0
