"""The engine process around a runner: channel, heartbeat, scheduler, pipeline; no torch."""

from workers.loop.channel import EngineChannel
from workers.loop.heartbeat import EngineStatus, Reporter, start_heartbeats
from workers.loop.loop import (
    Channel,
    CompiledGrammar,
    EngineBroken,
    EngineLoop,
    GrammarCompiler,
    Runner,
    scheduler_for,
)
from workers.loop.napping import MemoryMove, NativeSleep
from workers.loop.start_table import DeviceUse, aligned, bytes_text, start_table

__all__ = [
    "Channel",
    "CompiledGrammar",
    "DeviceUse",
    "EngineBroken",
    "EngineChannel",
    "EngineLoop",
    "EngineStatus",
    "GrammarCompiler",
    "MemoryMove",
    "NativeSleep",
    "Reporter",
    "Runner",
    "aligned",
    "bytes_text",
    "scheduler_for",
    "start_heartbeats",
    "start_table",
]
