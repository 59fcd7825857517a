"""The engine process around a runner: channel, heartbeat, scheduler, pipeline; no torch."""

from workers.loop.channel import EngineChannel
from workers.loop.heartbeat import EngineStatus, Reporter, start_heartbeats
from workers.loop.loop import (
    COPYING_POLL_S,
    Channel,
    CompiledGrammar,
    EngineLoop,
    GrammarCompiler,
    scheduler_for,
)
from workers.loop.native_sleep import MemoryMove, NativeSleep
from workers.loop.pipeline import EngineBroken, Runner
from workers.loop.start_table import (
    NO_STEP,
    DeviceUse,
    LargestStep,
    aligned,
    start_table,
)
