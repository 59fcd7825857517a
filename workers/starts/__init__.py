"""The facts of a start: recorded when it proves good, and compared with those of a later start.

Owns the record, the reading of its facts from a host, the file in the state directory, and the
comparison in words. Must not know processes, engines' APIs or torch.
"""

from workers.starts.compare import SLOWER, Difference, differences, slower_than
from workers.starts.deep import deep_differences, hashes_path
from workers.starts.gather import (
    Origin,
    driver_version,
    gather,
    model_folder,
    read_libraries,
    read_weights,
    this_origin,
)
from workers.starts.record import Library, StartRecord, Starts, WeightFile
from workers.starts.speed_watch import SpeedWatch
from workers.starts.store import (
    Verdict,
    judged,
    load_starts,
    record_path,
    recorded_workers,
    save_starts,
    starts_dir,
    with_steps,
)
from workers.starts.withheld import WITHHELD

__all__ = [
    "SLOWER",
    "WITHHELD",
    "Difference",
    "Library",
    "Origin",
    "SpeedWatch",
    "StartRecord",
    "Starts",
    "Verdict",
    "WeightFile",
    "deep_differences",
    "differences",
    "driver_version",
    "gather",
    "hashes_path",
    "judged",
    "load_starts",
    "model_folder",
    "read_libraries",
    "read_weights",
    "record_path",
    "recorded_workers",
    "save_starts",
    "slower_than",
    "starts_dir",
    "this_origin",
    "with_steps",
]
