"""The facts of a start: recorded when it proves good, and compared with those of a later start.

Owns the record, the reading of its facts from a host, the file in the state directory, and the
comparison in words. Must not know processes, engines' APIs or torch.
"""

from workers.starts.compare import SLOWER, StartDifference, differences
from workers.starts.full_hashes import deep_differences, hashes_path
from workers.starts.gather import (
    MachineOrigin,
    driver_version,
    gather,
    model_folder,
    read_libraries,
    read_weights,
    this_origin,
)
from workers.starts.record import (
    Library,
    StartRecord,
    StartRecords,
    WeightFile,
    config_file_of,
)
from workers.starts.speed_watch import SpeedWatch
from workers.starts.store import (
    RecordedWorker,
    StartVerdict,
    claim_record,
    judged,
    load_starts,
    record_of,
    record_path,
    recorded_workers,
    save_starts,
    starts_dir,
    with_steps,
)
