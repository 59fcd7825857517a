"""Workers of one card that take turns: which of them are resident, and when they change places.

Owns the decision (`policy.py`), the pauses by which it knows use (`pauses.py`), the messages
between the supervisors of a host (`messages.py`) and the record of what was measured (`record.py`).
Times are arguments. Must not know processes, sockets or how an engine sleeps.
"""

from workers.turns.fit import overfull, together
from workers.turns.messages import (
    Order,
    decode_order,
    decode_report,
    encode_order,
    encode_report,
)
from workers.turns.pauses import MemberState, PauseWatch
from workers.turns.policy import (
    Change,
    Member,
    SharedCard,
    TurnPlan,
    TurnPolicy,
)
from workers.turns.record import (
    TurnRecord,
    engine_id,
    read_record,
    read_records,
    record_path,
    records_dir,
    write_record,
)
