"""The messages between the processes of one worker host, and their encoding; no torch, no
sockets.
"""

from workers.ipc.answer_probe import AnswerProbe
from workers.ipc.framing import (
    BROADCAST,
    MAX_LINK,
    SUPERVISOR,
    FrameDecoder,
    encode_frame,
    encode_frames,
    recover_request_id,
)
from workers.ipc.group_messages import (
    HeadState,
    HostFacts,
    LinkFacts,
    RankState,
    decode_head_state,
    decode_rank_state,
    encode_state,
)
from workers.ipc.health_probe import HealthProbe
from workers.ipc.messages import (
    CHECKPOINT,
    FIRST_CONTROL_TAG,
    NATIVE_SLEEP,
    ClearCache,
    Cleared,
    Drained,
    DrainEngine,
    DropLink,
    EngineFailed,
    EngineReady,
    EngineStart,
    Heartbeat,
    Shutdown,
    SleepEngine,
    Slept,
    StartProgress,
    StartSpeed,
    ToEngine,
    WakeEngine,
    Woken,
    decode_from_engine,
    decode_to_engine,
    encode_control,
)
