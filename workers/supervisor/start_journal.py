"""Records the facts of each start, and judges a start that has proved good.

Owns the calls into `workers.starts` around an engine's life, in threads. If a record cannot be
kept, the start is not compared; it never fails. Must not know what is compared.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import msgspec
import trio

from config import EXTERNAL_ENGINES, WorkerConfig
from protocol.errors import ConfigError
from workers.ipc import EngineReady
from workers.starts import (
    SpeedWatch,
    StartRecord,
    StartRecords,
    StartVerdict,
    claim_record,
    gather,
    judged,
    load_starts,
    model_folder,
    read_weights,
    record_path,
    save_starts,
    this_origin,
    with_steps,
)
from workers.supervisor.engine_life import EngineLife
from workers.supervisor.log import WorkerLog

LOOK_EVERY_S: Final = 10.0


@final
class StartJournal:
    """The journal of one worker of the configuration file `file`. `arguments` are the words of the
    worker's command.
    """

    def __init__(self, arguments: Sequence[str], log: WorkerLog, file: str = "") -> None:
        self._arguments = arguments
        self._file = file
        self._log = log

    async def follow(self, life: EngineLife, config: WorkerConfig) -> None:
        """Record the start of `life`. Once it has proved good, compare it with the last good start
        and set the warnings of `life`.
        """
        is_native = config.engine not in EXTERNAL_ENGINES
        try:
            path = record_path(config.name, os.environ, self._file)
            record = await trio.to_thread.run_sync(self._begun, path, config)
            await life.proven.wait()
            assert life.loaded is not None
            starts, verdict = await trio.to_thread.run_sync(_proved, path, record, life.loaded)
            if verdict.figures or not is_native:
                life.report_speed_loss(verdict.figures, verdict.warnings, verdict.num_changes)
            # An engine on trial may be rejected, so it must not become the measure of later starts.
            await life.accepted.wait()
            await trio.to_thread.run_sync(save_starts, path, starts)
        except ConfigError as error:
            verdict = StartVerdict((f"starts are not compared: {error}",))
            life.warnings = verdict.warnings
        for warning in verdict.warnings:
            self._log.warning(warning)
        if verdict.changes:
            self._log.info(f"the start is recorded as good, with changes: {verdict.changes}")
        elif not verdict.warnings:
            self._log.info_unless_shared("the start is recorded as good")
        # External engines are measured by the same prompts at each start, native engines by their
        # steps.
        if verdict.is_good and not verdict.warnings and is_native:
            await self._watch(life, path, verdict)

    async def _watch(self, life: EngineLife, path: Path, good: StartVerdict) -> None:
        """Compare the steps of a good start with those of earlier ones, and keep the best."""
        watch = SpeedWatch(good.steps)
        life.on_load = watch.add
        figures, steps = watch.figures, dict(watch.steps)
        while True:
            await trio.sleep(LOOK_EVERY_S)
            if watch.figures != figures:
                is_news = not (figures and watch.figures)
                figures = watch.figures
                self._warn(life, good.of_steps(figures, path), is_news=is_news)
            if watch.steps != steps:
                steps = dict(watch.steps)
                if not figures:  # clears the report of an earlier, slower engine
                    life.report_speed_loss((), (), 0)
                try:
                    await trio.to_thread.run_sync(_keep_steps, path, steps)
                except ConfigError as error:
                    self._log.warning(f"the speed of steps is not kept: {error}")

    def _warn(self, life: EngineLife, verdict: StartVerdict, *, is_news: bool) -> None:
        """Update the status with the slow kinds of work; log a warning when a loss begins."""
        life.report_speed_loss(verdict.figures, verdict.warnings, verdict.num_changes)
        for warning in verdict.warnings if is_news else ():
            self._log.warning(warning)
        if not verdict.figures:
            self._log.info("steps are as fast as those of the last good start again")

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
        claim_record(path, self._file)
        save_starts(path, StartRecords(load_starts(path).good, record))
        return record


def _keep_steps(path: Path, steps: dict[str, float]) -> None:
    save_starts(path, with_steps(load_starts(path), steps))


def _proved(
    path: Path, record: StartRecord, loaded: EngineReady
) -> tuple[StartRecords, StartVerdict]:
    """The starts with the new one, and the verdict on it. Only the engine knows the files of a
    model from the hub.
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
