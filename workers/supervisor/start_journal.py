"""Records what each start is made of, and judges those that prove good.

Owns the calls into `workers.starts` around an engine's life, in threads. A record that cannot be
kept costs the comparison, never the start. Must not know what is compared.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

import msgspec
import trio

from config import WorkerConfig
from protocol.errors import ConfigError
from workers.ipc import EngineReady
from workers.starts import (
    StartRecord,
    Starts,
    Verdict,
    gather,
    judged,
    load_starts,
    model_folder,
    read_weights,
    record_path,
    save_starts,
    this_origin,
)
from workers.supervisor.engine_life import EngineLife
from workers.supervisor.log import Log


@final
class StartJournal:
    """`arguments` are the words of the worker's command."""

    def __init__(self, arguments: Sequence[str], log: Log) -> None:
        self._arguments = arguments
        self._log = log

    async def follow(self, life: EngineLife, config: WorkerConfig) -> None:
        """Record the start of `life`; once it has proved good, compare it with the last good one
        and set the warnings of `life`.
        """
        try:
            path = record_path(config.name, os.environ)
            record = await trio.to_thread.run_sync(self._begun, path, config)
            await life.proven.wait()
            assert life.loaded is not None
            starts, verdict = await trio.to_thread.run_sync(_proved, path, record, life.loaded)
            life.warnings = verdict.warnings
            # An engine on trial may be rejected, and would be the measure of the next.
            await life.accepted.wait()
            await trio.to_thread.run_sync(save_starts, path, starts)
        except ConfigError as error:
            verdict = Verdict((f"starts are not compared: {error}",))
            life.warnings = verdict.warnings
        for warning in verdict.warnings:
            self._log.info(f"warning: {warning}")
        if verdict.changes:
            self._log.info(f"the start is recorded as good, with changes: {verdict.changes}")
        elif not verdict.warnings:
            self._log.info_unless_shared("the start is recorded as good")

    def _begun(self, path: Path, config: WorkerConfig) -> StartRecord:
        record = gather(
            this_origin(),
            config,
            arguments=self._arguments,
            environ=os.environ,
            model_dir=model_folder(config.model),
            at=time.time(),
            folder=str(Path.cwd()),
        )
        save_starts(path, Starts(load_starts(path).good, record))
        return record


def _proved(path: Path, record: StartRecord, loaded: EngineReady) -> tuple[Starts, Verdict]:
    """The starts with one that has generated tokens, and what is said of it. Only the engine knows
    where the files of a model of the hub are.
    """
    folder = record.model_dir or loaded.model_dir
    whole = msgspec.structs.replace(
        record,
        speed=loaded.speed,
        engine_version=loaded.version,
        model_dir=folder,
        weights=record.weights or read_weights(this_origin(), folder),
    )
    return judged(load_starts(path), whole, path)
