"""The start of an engine: from a worker's configuration to a runner.

Owns the order of a start and what it reports. Must not know how a step is computed.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import torch

from config import DUMMY_PREFIX, INDEX_DRAFTERS, WorkerConfig
from housekeeping.own_code import module_argv
from kernels.experts import check_mxfp4
from kernels.linear import check_int4
from kernels.mxfp4 import Mxfp4Weight
from protocol.errors import ConfigError
from workers.engine.compile.compile_ahead import CompileAhead
from workers.engine.compile.kernel_cache import hash_compiler, watch_kernel_cache
from workers.engine.drafting.demand import ROWS_OF_A_PASS
from workers.engine.drafting.description import names_head
from workers.engine.drafting.drafter import Drafter
from workers.engine.drafting.load import has_own_head, load_drafter
from workers.engine.load.checkpoint import Report
from workers.engine.memory.budget import num_processors
from workers.engine.memory.kv_size import KvDemand, choose_blocks, share_of
from workers.engine.memory.out_of_memory import is_of_host, is_out_of_memory, shortage
from workers.engine.memory.state_size import StateMemory
from workers.engine.memory.window_size import WindowMemory
from workers.engine.models.description import Experts, ModelDescription
from workers.engine.models.dummy import draw_weights
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.model_config import read_model_config
from workers.engine.models.network import Network
from workers.engine.models.weight_reader import load_weights
from workers.engine.models.weights import ModelWeights
from workers.engine.parallel.ranks import Ranks
from workers.engine.parallel.shares import LayerCut, config_of, cut_and_then, model_of
from workers.engine.peak_probe import PeakMeter, room, run_largest_steps, shallow
from workers.engine.runner import DraftingSetup, ModelRunner, steps_on
from workers.engine.settings import (
    compute_dtype,
    engine_facts,
    kv_dtype,
    layer_change,
    probe_facts,
    states,
    vocabulary_form,
    window,
    window_memory,
    with_windows,
)
from workers.engine.sleep.choice import sleep_of
from workers.engine.sleep.device_sleep import DeviceSleep, NoSleep
from workers.engine.sleep.read_again import LayerChange, copy_into, read_again
from workers.engine.sleep.weight_tensors import tensors_of
from workers.engine.tier.sizing import copy_bytes, open_tier
from workers.engine.warm_up import warm_up
from workers.memory_room import MemoryRoom
from workers.model_dir import drafter_dir, local_dir

_SMALL_BYTES: Final = 64 * 2**20
"""A smaller model runs in one thread by default: its layers fit into a processor's cache, so
threads gain nothing, and spinning threads of several workers cost each most of its speed.
"""


def load_runner(
    config: WorkerConfig,
    report: Report,
    ahead: CompileAhead | None = None,
    ranks: Ranks | None = None,
    cache_fd: int | None = None,
) -> ModelRunner:
    """Find the model, load its weights, take memory for keys and values, warm up.

    `ahead` compiles kernels for the start. With `ranks` this process loads its share of the model,
    and all ranks load at the same time, because the first steps are theirs together. `cache_fd` is
    the supervisor's region of host memory. Raises `ConfigError`, one line that says what is wrong
    and what to do.
    """
    with _phase(report, "device", config.device):
        if config.device != "cpu" and torch.cuda.is_available():
            hash_compiler()
        device = _device(config.device)
        kernels = watch_kernel_cache() if device.type == "cuda" else None
        if ahead is not None:
            if device.type == "cuda":
                ahead.watch()
            else:
                ahead.stop()
    model_dir = find_model(config.model, report)
    if ahead is not None:
        ahead.model_is_at(model_dir)
    shape = read_model_config(model_dir)
    shape = with_windows(config, shape, is_drafting=_may_draft(config, model_dir))
    dtype = compute_dtype(config, shape, device)
    torch.set_num_threads(config.threads or num_processors())
    try:
        weights = _load(config, model_dir, shape, device, dtype, report, ranks)
        if config.threads is None and weights.num_bytes() < _SMALL_BYTES:
            torch.set_num_threads(1)
        own = shape if ranks is None else config_of(shape, ranks.share)
        sleep = sleep_of(config, device, has_ranks=ranks is not None)
        sleep.adopt(
            tensors_of(weights),
            partial(_read_again, config, model_dir, shape, device, dtype, weights),
        )
        model = Network(
            own,
            weights,
            window(config, shape),
            invariant=config.invariant,
            ranks=ranks,
            place=sleep.place,
        )
        drafter, kept, sizes = _divide(
            config,
            model,
            model_dir,
            _agreed_drafter(config, model, model_dir, report),
            report,
            sleep.num_bytes,
        )
        num_blocks, windows, spare_bytes, step_bytes = sizes
        _adopt_drafter(sleep, config, model, model_dir, drafter)
        cache = _take_caches(config, model, num_blocks, windows, drafter)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(_does_not_fit(config, device, error)) from error
    tokens = num_blocks * config.block_size
    with _phase(report, "warm-up", f"first steps, {tokens} tokens of keys and values"):
        limits = (None, 0) if kept is None else (kept.num_seqs, kept.num_snapshots)
        if windows is not None:
            wanted = config.snapshots
            limits = None, windows.num_snapshots if wanted is None else wanted
        facts = engine_facts(config, model, window(config, shape), num_blocks, *limits)
        chosen = DraftingSetup(config.drafting is not None, drafter)
        steps = steps_on(model, cache, facts, spare_bytes, chosen)
        runner = ModelRunner(
            model, cache, facts, model_dir, steps, step_bytes, verifies=chosen.is_on
        )
        runner.sleep = sleep
        open_tier(config, runner, cache_fd, report)
        warm_up(runner)
    if kernels is not None:
        texts = [kernels.summary()] + ([] if ahead is None else [ahead.summary()])
        report("warm-up", 1.0, f"kernels: {'; '.join(texts)}")
    return runner


def _may_draft(config: WorkerConfig, model_dir: Path) -> bool:
    """Whether a drafting network may run behind the steps, before it is known whether it loads and
    fits.
    """
    chosen = config.drafting
    if chosen is None:
        return False
    if chosen.drafter not in INDEX_DRAFTERS:
        return True
    is_drawn = config.model.startswith(DUMMY_PREFIX)
    return config.speculation == "auto" and not is_drawn and names_head(model_dir)


def _load(
    config: WorkerConfig,
    model_dir: Path,
    shape: ModelDescription,
    device: torch.device,
    dtype: torch.dtype,
    report: Report,
    ranks: Ranks | None,
) -> ModelWeights:
    """Load the weights, or a rank's share of them, to their device. If they are in 4 bits, check
    the kernels that multiply them there, because that must happen outside captures. Raises
    `ConfigError`.
    """
    with _phase(report, "load", config.model):
        weights = _read(config, model_dir, shape, device, dtype, report, ranks)
    if device.type == "cuda" and weights.has_int4:
        report("check", 0.0, "4-bit products")
        print(check_int4(device, dtype).text, file=sys.stderr)
    if device.type == "cuda":
        _check_experts(shape, weights, device, report)
    return weights


def _read(
    config: WorkerConfig,
    model_dir: Path,
    shape: ModelDescription,
    device: torch.device,
    dtype: torch.dtype,
    report: Report,
    ranks: Ranks | None,
) -> ModelWeights:
    """As `_load`, without checks."""
    change = layer_change(config, shape, dtype, device)
    if ranks is not None:
        change = cut_and_then(LayerCut(shape, ranks.share), change)
    weights = _read_changed(config, model_dir, shape, device, dtype, report, change)
    return weights if ranks is None else model_of(weights, shape, ranks.share)


def _read_changed(
    config: WorkerConfig,
    model_dir: Path,
    shape: ModelDescription,
    device: torch.device,
    dtype: torch.dtype,
    report: Report,
    change: LayerChange | None,
) -> ModelWeights:
    """Read or draw the weights, with each layer changed."""
    vocabulary = vocabulary_form(config, shape)
    if config.model.startswith(DUMMY_PREFIX):
        return draw_weights(
            shape, device, dtype, change=change, vocabulary=vocabulary, draws_experts=True
        )
    return load_weights(
        model_dir, shape, device, dtype, report, change=change, vocabulary=vocabulary
    )


def _read_again(
    config: WorkerConfig,
    model_dir: Path,
    shape: ModelDescription,
    device: torch.device,
    dtype: torch.dtype,
    kept: ModelWeights,
) -> None:
    """Read the weights into the memory that they had. Raises `ConfigError`."""
    read = partial(_read_changed, config, model_dir, shape, device, dtype, _untold)
    read_again(kept, layer_change(config, shape, dtype, device), read)


def _adopt_drafter(
    sleep: DeviceSleep | NoSleep,
    config: WorkerConfig,
    model: Network,
    model_dir: Path,
    drafter: Drafter | None,
) -> None:
    """Let the drafter's weights sleep with those of its target."""
    if drafter is not None:
        again = partial(_drafter, config, model, model_dir, _untold)
        sleep.adopt(tensors_of(drafter), lambda: copy_into(drafter, again()))


def _untold(_phase: str, _fraction: float, _detail: str) -> None:
    """Report nothing: the process has started."""


def _check_experts(
    shape: ModelDescription, weights: ModelWeights, device: torch.device, report: Report
) -> None:
    """Check the kernel of experts in MXFP4, by the first layer that has such."""
    for layer, own in zip(shape.layers, weights.layers, strict=False):
        stacks = own.gate_up, own.down
        if not isinstance(layer.mlp, Experts) or not isinstance(stacks[0], Mxfp4Weight):
            continue
        if not isinstance(stacks[1], Mxfp4Weight):
            continue
        report("check", 0.0, "experts in MXFP4")
        command = module_argv("kernels.experts.mxfp4_check")
        mlp = layer.mlp
        said = check_mxfp4(
            device, stacks[0], stacks[1], mlp.routing, mlp.activation, command, has_bias=mlp.biased
        )
        print(said, file=sys.stderr)
        return


def _drafter(
    config: WorkerConfig, model: Network, model_dir: Path, report: Report
) -> Drafter | None:
    """The drafting network of the configuration, if it names one, or with "auto" the checkpoint's
    own head. Raises `ConfigError`.
    """
    chosen = config.drafting
    if chosen is None:
        return None
    if chosen.drafter not in INDEX_DRAFTERS:
        path = drafter_dir(chosen.drafter) or _fetched(chosen.drafter, report)
        with _phase(report, "load", f"drafter {chosen.drafter}"):
            return load_drafter(path, model, window(config, model.config))
    return _own_head(config, model, model_dir, report) if config.speculation == "auto" else None


def _agreed_drafter(
    config: WorkerConfig, model: Network, model_dir: Path, report: Report
) -> Drafter | None:
    """As `_drafter`; a head that "auto" finds at all ranks, or at none."""
    drafter = _drafter(config, model, model_dir, report)
    if model.ranks is None or config.drafting is None:
        return drafter
    if model.ranks.agreed(drafter is not None):
        return drafter
    if drafter is not None:
        _leave_out("another rank has none that it can use")
    return None


def _own_head(
    config: WorkerConfig, model: Network, model_dir: Path, report: Report
) -> Drafter | None:
    """The MTP head of the model's checkpoint. An unusable head is left out and logged, so that the
    worker serves.
    """
    try:
        is_drawn = config.model.startswith(DUMMY_PREFIX)
        if is_drawn or not has_own_head(model_dir, model.config):
            return None
        with _phase(report, "load", "the checkpoint's MTP head"):
            return load_drafter(model_dir, model, window(config, model.config))
    except ConfigError as error:
        _leave_out(error)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        _leave_out(f"its weights do not fit beside the model's: {shortage(error)}")
    return None


def _does_not_fit(config: WorkerConfig, device: torch.device, error: BaseException) -> str:
    """Names the memory that is too small: a worker on a card needs the host's too."""
    model = config.model
    if device.type == "cuda" and is_of_host(error):
        return (
            f"{model} does not fit into the memory of the host beside its card ({shortage(error)}):"
            ' lower host_bytes, leave out embedding = "host", or end what else runs there'
        )
    name = "the host" if is_of_host(error) else device
    return (
        f"{model} does not fit into the memory of {name}: take a smaller model, "
        "lower token_budget or kv_tokens, or end what else runs there"
    )


def _leave_out(why: object) -> None:
    line = f'speculation = "auto": drafts come from earlier text, not from an MTP head: {why}'
    print(line, file=sys.stderr, flush=True)


class _Division(NamedTuple):
    """How many blocks there are for keys and values, and for those of layers that keep only their
    window; how much of the largest step's peak is free again after it, and that step's bytes.
    """

    num_blocks: int
    windows: WindowMemory | None
    passing_bytes: int
    step_bytes: int


def _divide(
    config: WorkerConfig,
    model: Network,
    model_dir: Path,
    drafter: Drafter | None,
    report: Report,
    beside_bytes: int,
) -> tuple[Drafter | None, StateMemory | None, _Division]:
    """Divide the memory: the drafter, the room for states, and the result of `_num_blocks`. A
    drafter that "auto" has found is left out if what the configuration asks for does not fit
    beside it. `beside_bytes` of the device are this process's, and not torch's. Raises
    `ConfigError`.
    """
    device, dtype = model.device, model.weights.embedding.dtype
    while True:
        with _phase(report, "memory", "measuring room for keys and values"):
            found = _shared_room(model, beside_bytes)
            kept = states(config, model.config, dtype, device, found.num_bytes)
            lacking = None
            try:
                division = _num_blocks(config, model, model_dir, found, kept, drafter)
            except ConfigError as error:
                if drafter is None or config.speculation != "auto":
                    raise
                lacking = error
            ranks = model.ranks
            if (lacking is None) if ranks is None else ranks.agreed(lacking is None):
                return drafter, kept, _least_division(division, ranks)
            _leave_out(f"beside it {lacking or 'another rank lacks memory'}")
        drafter = None  # its weights have no other owner: the next reading finds their memory free


def _shared_room(model: Network, beside_bytes: int) -> MemoryRoom:
    """The room of this device, or of the fullest of all ranks', which must divide alike."""
    found = room(model.device, beside_bytes)
    if model.ranks is None:
        return found
    return found._replace(num_bytes=model.ranks.least(found.num_bytes))


def _num_blocks(
    config: WorkerConfig,
    model: Network,
    model_dir: Path,
    before: MemoryRoom,
    kept: StateMemory | None,
    drafter: Drafter | None,
) -> _Division:
    """What fits into the room `before` beside states and the largest step, whose memory is measured
    on a card.
    """
    shape, embedding = model.config, model.weights.embedding
    device, dtype = embedding.device, kv_dtype(config, embedding.dtype)
    token_bytes = shape.token_numbers * dtype.itemsize
    token_bytes += 0 if drafter is None else drafter.token_bytes
    meter = PeakMeter(device)
    probed_bytes = 0
    if device.type == "cuda":
        probed, max_seqs = shallow(model), None if kept is None else kept.num_seqs
        facts = probe_facts(config, model, before.num_bytes // token_bytes, max_seqs)
        with meter:
            cache = KvCache(probed.config, 1, config.block_size, device, dtype, 1)
            runner = ModelRunner(probed, cache, facts, model_dir)
            run_largest_steps(runner)
            probed_bytes = runner.state_bytes
        del cache, runner
    dummy_bytes = token_bytes * config.block_size if device.type == "cuda" else 0
    dummy_bytes += copy_bytes(config, token_bytes * config.block_size, device)
    step_bytes = meter.peak_bytes - probed_bytes
    draft_bytes = 0 if drafter is None else _draft_bytes(config, model, drafter)
    peak_bytes = step_bytes + dummy_bytes + draft_bytes
    left = int(share_of(is_card=device.type == "cuda") * (before.num_bytes - peak_bytes))
    windows = window_memory(config, shape, dtype.itemsize, left, device)
    state_bytes = 0 if kept is None else kept.num_bytes
    demand = KvDemand(
        token_bytes=token_bytes,
        block_size=config.block_size,
        peak_bytes=peak_bytes,
        context_length=window(config, shape),
        needs_context=config.context_length is not None,
        wanted_tokens=config.kv_tokens,
        state_bytes=state_bytes if windows is None else windows.num_bytes,
    )
    num_blocks = choose_blocks(before, demand, is_card=device.type == "cuda")
    return _Division(num_blocks, windows, meter.passing_bytes, step_bytes)


def _least_division(division: _Division, ranks: Ranks | None) -> _Division:
    """With as many blocks as all ranks have room for."""
    if ranks is None:
        return division
    windows = None if division.windows is None else _least(division.windows, ranks)
    return division._replace(num_blocks=ranks.least(division.num_blocks), windows=windows)


def _least(windows: WindowMemory, ranks: Ranks) -> WindowMemory:
    """The blocks and snapshots for which all ranks have room."""
    sizes = windows.sizes._replace(num_blocks=ranks.least(windows.sizes.num_blocks))
    return windows._replace(sizes=sizes, num_snapshots=ranks.least(windows.num_snapshots))


def _take_caches(
    config: WorkerConfig,
    model: Network,
    num_blocks: int,
    windows: WindowMemory | None,
    drafter: Drafter | None,
) -> KvCache:
    """The memory for keys and values, of a drafter too."""
    dtype = kv_dtype(config, model.weights.embedding.dtype)
    in_windows = 0 if windows is None else windows.sizes.num_blocks
    cache = KvCache(
        model.config, num_blocks, config.block_size, model.device, dtype, in_windows, model.place
    )
    if drafter is not None:
        drafter.take_cache(num_blocks + 1, config.block_size)
    return cache


def _draft_bytes(config: WorkerConfig, model: Network, drafter: Drafter) -> int:
    """Bytes that the largest step takes for its drafter: the taps, their mixture, and rows of keys
    and values.
    """
    row = model.config.hidden_size * model.weights.embedding.itemsize
    return config.token_budget * row * (len(drafter.taps) + ROWS_OF_A_PASS)


@contextmanager
def _phase(report: Report, phase: str, detail: str) -> Iterator[None]:
    """Report the phase before it starts, and its time afterwards."""
    report(phase, 0.0, detail)
    started_at = time.perf_counter()
    yield
    report(phase, 1.0, f"{detail}: {time.perf_counter() - started_at:.2f} s")


def find_model(model: str, report: Report) -> Path:
    """The directory of a model, downloaded from the hub if necessary. Raises `ConfigError`."""
    return local_dir(model) or _fetched(model, report)


def _fetched(model: str, report: Report) -> Path:
    # Its HTTP client takes 0.3 s to import, and most starts need none.
    from workers.engine.load.hub import fetch_model  # noqa: PLC0415

    return fetch_model(model, report)


def _device(name: str) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    device = torch.device("cuda:0" if name in ("auto", "cuda") else name)
    if torch.version.cuda is None:
        raise ConfigError(
            f"device = {name!r}, but torch {torch.__version__} is built without CUDA: install a "
            "build with it, or take device = 'cpu'"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise ConfigError(
            f"device = {name!r}, but torch finds {count} CUDA devices: `herma doctor` looks for "
            "the cause; device = 'cpu' does without"
        )
    torch.cuda.set_device(device)
    return device
