"""`python -m workers.engine --fd N --name NAME`: the engine process, started by its supervisor.

Owns the way from the first frame to the loop, and an end with one clear cause. Imports the
libraries of one kind of engine only for that kind: torch for a native one.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket
import sys
import time
import traceback
from array import array
from collections.abc import Callable
from math import inf
from threading import Thread
from typing import TYPE_CHECKING, Any, NoReturn, assert_never, cast

import msgspec
from setproctitle import setproctitle

from config import EXTERNAL_ENGINES, SpeculationConfig, WorkerConfig
from housekeeping.imports import uncollected
from housekeeping.signals import die_with_parent
from protocol.errors import ConfigError, WireError
from protocol.messages import ENFORCES_GRAMMARS
from workers.engine.compile.compile_ahead import start_compiling
from workers.engine.parallel.processes import RankProcesses
from workers.host_cache import taken_fd
from workers.ipc import (
    NATIVE_SLEEP,
    SUPERVISOR,
    EngineFailed,
    EngineReady,
    EngineStart,
    Shutdown,
    decode_to_engine,
    encode_control,
)
from workers.loop import (
    Channel,
    DeviceUse,
    EngineBroken,
    EngineChannel,
    EngineLoop,
    EngineStatus,
    GrammarCompiler,
    NativeSleep,
    Reporter,
    Runner,
    scheduler_for,
    start_heartbeats,
    start_table,
)
from workers.memory_room import host_size
from workers.model_dir import TOKENIZER_NAME, check_text_files, read_vocab_size
from workers.scheduler import Proposer, largest_id
from workers.tier_size import check_size

if TYPE_CHECKING:
    from workers.engine.drafting.record import DraftRecord
    from workers.engine.tier.engine_tier import EngineTier


def main(argv: list[str] | None = None) -> int:
    """Run one engine to its end; the exit status is 0 only after `Shutdown`."""
    arguments = _parse(argv)
    setproctitle(f"herma engine {arguments.name}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides when to leave
    if arguments.parent is not None:
        # SIGKILL works even while a thread holds the GIL; the end of file on the channel is the
        # second signal, but needs a thread to run.
        die_with_parent(arguments.parent, signal.SIGKILL)
    channel = EngineChannel(socket.socket(fileno=arguments.fd))
    try:
        _serve(channel)
    except ConfigError as error:
        _say_failed(channel, EngineFailed(str(error), is_config=True))
        return 1
    except (EngineBroken, WireError) as error:
        _say_failed(channel, EngineFailed(str(error)))
        return 1
    except Exception as error:  # noqa: BLE001 -- the edge of the process: the cause must be reported
        text = str(error).strip().partition("\n")[0]
        cause = f"{type(error).__name__}: {text}"
        _say_failed(channel, EngineFailed(cause, traceback.format_exc()))
        return 1
    return 0


# ruff: noqa: PLC0415 -- torch takes seconds and 200 MB, a tokenizer a tenth of that
def _serve(channel: EngineChannel) -> None:
    start = _first_frame(channel)
    config = msgspec.json.decode(start.config_json, type=WorkerConfig)
    status = EngineStatus()
    start_heartbeats(channel, status)
    report = Reporter(channel, status)
    if config.engine in EXTERNAL_ENGINES:
        from workers.bridge import serve_external, serve_rank

        if config.rank:
            serve_rank(config, channel, report)
            return
        serve_external(config, channel, status, report, epoch=start.epoch)
        return
    if config.group is not None and config.rank:
        _follow(config, channel, report)
        return
    runner, inbox, largest, use, engine_tier = _load(config, report, channel, start.epoch)
    compiler = _compiler(runner, report)
    speculation, record, drafting = _speculation(config, runner)
    scheduler = scheduler_for(
        runner,
        config.serves,
        max_waiting=config.max_waiting,
        vocab_size=read_vocab_size(runner.model_dir),
        largest=largest,
        max_gap_s=inf if config.max_gap_ms is None else config.max_gap_ms / 1e3,
        enforces_grammars=compiler is not None,
        proposer=speculation,
        tier=None if engine_tier is None else engine_tier.host_tier(time.monotonic()),
        swaps=engine_tier is not None and engine_tier.swaps,
        windows=None if use is None else use.windows(runner.facts.block_size),
    )
    for line in start_table(
        runner.facts, config.serves, config.max_gap_ms, report.seconds(), use, drafting
    ):
        print(line, file=sys.stderr)
    sys.stderr.flush()
    status.phase = ""
    sleep, ready = _ready(config, runner, "" if use is None else use.trouble)
    channel.send([(SUPERVISOR, encode_control(ready))])
    # The libraries' objects are never freed; with torch there are half a million, and a collection
    # that scans them delays a step.
    gc.freeze()
    loop = EngineLoop(
        runner,
        scheduler,
        inbox,
        status,
        epoch=start.epoch,
        compiler=compiler,
        watch_drafts=None if record is None else record.report,
        copies=None if engine_tier is None else engine_tier.copies,
        sleep=sleep,
    )
    loop.run()
    if record is not None:
        record.keep()


def _load(
    config: WorkerConfig, report: Reporter, channel: EngineChannel, epoch: int
) -> tuple[Runner[Any], Channel, Callable[[array[int]], int], DeviceUse | None, EngineTier | None]:
    """The runner of the configuration, the channel that its loop reads, a function that finds the
    largest token id, and for a native engine its use of the device and its host tier.
    """
    match config.engine:
        case "synthetic":
            from workers.replay import load_synthetic

            return load_synthetic(config, report), channel, largest_id, None, None
        case "scripted":
            from workers.replay import PacedChannel, load_scripted

            scripted = load_scripted(config, report, epoch=epoch)
            return scripted, PacedChannel(channel, scripted.rest_s), largest_id, None, None
        case "native":
            check_text_files(config)
            check_size(config, host_size())
            report("import", 0.0, "torch")
            if config.tensor_parallel > 1:
                return _load_ranks(config, report, channel)
            ahead = start_compiling(config)
            with uncollected():
                from workers.engine import runner
                from workers.engine.start import load_runner

            native = load_runner(config, report, ahead, cache_fd=taken_fd(os.environ))
            return native, channel, runner.largest_id, native.device_use, native.tier
        case "vllm" | "sglang" | "llama-cpp" | "openai":
            raise AssertionError("the bridge serves these")
        case _:
            assert_never(config.engine)


def _load_ranks(
    config: WorkerConfig, report: Reporter, channel: EngineChannel
) -> tuple[Runner[Any], Channel, Callable[[array[int]], int], DeviceUse | None, EngineTier | None]:
    """Like `_load`, for the first of several ranks. The other ranks of this host import torch at
    the same time.
    """
    processes = RankProcesses(config) if config.group is None else None
    with uncollected():
        from workers.engine import runner
        from workers.engine.parallel.start import load_leading

    def part(cause: str) -> NoReturn:
        _say_failed(channel, EngineFailed(cause))
        os._exit(1)

    leading = load_leading(config, report, part, processes=processes)
    return leading, channel, runner.largest_id, leading.device_use, leading.tier


def _follow(config: WorkerConfig, channel: EngineChannel, report: Reporter) -> None:
    """Be a rank whose first one is on another host, until `Shutdown`. Raises as `follow_host`, and
    `EngineBroken` at the end of the first rank.
    """
    with uncollected():
        from workers.engine.parallel.start import follow_host

    check_text_files(config)
    Thread(target=_end_at_shutdown, args=(channel,), name="shutdown", daemon=True).start()
    follow_host(config, report)
    raise EngineBroken(f"rank 0 of group {config.group} has ended, or is cut off")


def _end_at_shutdown(channel: EngineChannel) -> None:
    while True:
        for link, payload in channel.take(None):
            if link == SUPERVISOR and isinstance(decode_to_engine(payload), Shutdown):
                os._exit(0)


def _speculation(
    config: WorkerConfig, runner: Runner[Any]
) -> tuple[Proposer | None, DraftRecord | None, SpeculationConfig | None]:
    """The proposer of drafts, the record of their gain, and the configuration of speculation. A
    native engine verifies the drafts.
    """
    if config.engine != "native" or config.drafting is None:
        return None, None, None
    from workers.engine.drafting.speculating import (
        DraftingRunner,
        drafting_of,
        kept_speculation,
    )

    drafting = cast("DraftingRunner", runner)  # both runners of a native engine fit
    return *kept_speculation(config, drafting, os.environ), drafting_of(config, drafting)


def _ready(
    config: WorkerConfig, runner: Runner[Any], trouble: str
) -> tuple[NativeSleep | None, EngineReady]:
    """The sleep of an engine that can sleep without ending (its preparation begins here), and what
    the supervisor is told of a loaded engine.
    """
    sleep: NativeSleep | None = None
    why = ""
    if config.engine == "native":
        from workers.engine import runner as native
        from workers.engine.sleep.choice import begun_sleep
        from workers.engine.sleep.device_sleep import NoSleep

        if isinstance(runner, native.ModelRunner):  # an engine of several ranks has another runner
            found = begun_sleep(runner)
            sleep, why = (None, found.why) if isinstance(found, NoSleep) else (found, "")
    way = "" if sleep is None and not why else NATIVE_SLEEP
    ready = EngineReady(
        runner.facts, str(runner.model_dir), trouble=trouble, sleep_way=way, sleep_refusal=why
    )
    return sleep, ready


def _compiler(runner: Runner[Any], report: Reporter) -> GrammarCompiler | None:
    """The compiler of grammars, if the engine enforces them. A dummy shape for benchmarks has no
    tokenizer.
    """
    has_tokenizer = (runner.model_dir / TOKENIZER_NAME).is_file()
    if ENFORCES_GRAMMARS not in runner.facts.capabilities or not has_tokenizer:
        return None
    from workers.engine.grammar.compiler import LARGE_VOCABULARY, LlGuidanceCompiler
    from workers.engine.models.model_config import read_model_config

    vocab_size = read_model_config(runner.model_dir).vocab_size
    compiler = LlGuidanceCompiler(runner.model_dir, vocab_size, runner.eos_ids)
    if vocab_size >= LARGE_VOCABULARY:
        report("grammars", 0.0, "tokenizer")
        compiler.load()
    return compiler


def _first_frame(channel: EngineChannel) -> EngineStart:
    _, payload = channel.take(None)[0]
    message = decode_to_engine(payload)
    if not isinstance(message, EngineStart):
        raise WireError(f"the first frame is {type(message).__name__}, not EngineStart")
    return message


def _say_failed(channel: EngineChannel, failed: EngineFailed) -> None:
    if failed.detail:
        print(failed.detail, file=sys.stderr)
    channel.send([(SUPERVISOR, encode_control(failed))])


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.engine")
    parser.add_argument("--fd", type=int, required=True, help="socketpair of the supervisor")
    parser.add_argument("--name", required=True, help="the worker's name, for the title")
    parser.add_argument("--parent", type=int, help="the supervisor's process id: die with it")
    return parser.parse_args(argv)


if __name__ == "__main__":
    status_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the interpreter's teardown: torch's takes seconds, and there is nothing to save.
    os._exit(status_code)
