"""How a start divides the memory of its device: the drafter, recurrent states, the largest step,
and blocks for keys and values.

Owns the measurement of the room, and what is left out if the room is too small. Must not know how
weights are read, nor how a step is computed.
"""

from typing import NamedTuple

from config import WorkerConfig
from protocol.errors import ConfigError
from workers.engine.drafting.demand import ROWS_OF_A_PASS
from workers.engine.drafting.drafter import Drafter
from workers.engine.load.report import Report, phase_of
from workers.engine.memory.kv_size import KvDemand, choose_blocks, share_of
from workers.engine.memory.state_size import StateMemory
from workers.engine.memory.window_size import WindowMemory
from workers.engine.model_source import ModelSource, leave_out_head
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.parallel.ranks import Ranks
from workers.engine.peak_probe import PeakMeter, room, run_largest_steps, shallow
from workers.engine.runner import ModelRunner
from workers.engine.settings import kv_dtype, probe_facts, states, window, window_memory
from workers.engine.tier.sizing import copy_bytes
from workers.loop import NO_STEP, LargestStep
from workers.memory_room import MemoryRoom


class BlockRoom(NamedTuple):
    """How many blocks there are for keys and values, and for those of layers that keep only their
    window; how much of the largest step's peak is free again after it, and the step itself.
    """

    num_blocks: int
    windows: WindowMemory | None
    passing_bytes: int
    largest: LargestStep


class Division(NamedTuple):
    """The division of the memory beside the weights: the drafter and the recurrent states, if there
    are any, and the blocks.
    """

    drafter: Drafter | None
    states: StateMemory | None
    blocks: BlockRoom

    def limits(self, config: WorkerConfig) -> tuple[int | None, int]:
        """The most sequences, None if they follow from the blocks, and the snapshots of prefixes
        (recurrent states, or the blocks of windows).
        """
        if (windows := self.blocks.windows) is not None:
            wanted = config.snapshots
            return None, windows.num_snapshots if wanted is None else wanted
        states = self.states
        return (None, 0) if states is None else (states.num_seqs, states.num_snapshots)


def divide(source: ModelSource, model: Network, report: Report, beside_bytes: int) -> Division:
    """Load the drafter, and divide the memory. A drafter that "auto" has found is left out if what
    the configuration asks for does not fit beside it. `beside_bytes` of the device are this
    process's, and not torch's. Raises `ConfigError`.
    """
    config, ranks = source.config, model.ranks
    drafter = source.drafter(model, report)
    while True:
        with phase_of(report, "memory", "measuring room for keys and values"):
            found = _shared_room(model, beside_bytes)
            dtype = model.weights.embedding.dtype
            kept = states(config, model.config, dtype, model.device, found.num_bytes)
            lacking = None
            try:
                blocks = _blocks(source, model, found, kept, drafter)
            except ConfigError as error:
                if drafter is None or config.speculation != "auto":
                    raise
                lacking = error
            if (lacking is None) if ranks is None else ranks.agreed(lacking is None):
                return Division(drafter, kept, _least_blocks(blocks, ranks))
            leave_out_head(f"beside it {lacking or 'another rank lacks memory'}")
        # The drafter's weights have no other owner: the next reading finds their memory free.
        drafter = None


def _shared_room(model: Network, beside_bytes: int) -> MemoryRoom:
    """The room of this device, or of the fullest of all ranks', which must divide alike."""
    found = room(model.device, beside_bytes)
    if model.ranks is None:
        return found
    return found._replace(num_bytes=model.ranks.least(found.num_bytes))


def _blocks(
    source: ModelSource,
    model: Network,
    before: MemoryRoom,
    kept: StateMemory | None,
    drafter: Drafter | None,
) -> BlockRoom:
    """What fits into the room `before` beside states, the drafter and the largest step."""
    config, shape, embedding = source.config, model.config, model.weights.embedding
    device, dtype = embedding.device, kv_dtype(config, embedding.dtype)
    is_card = device.type == "cuda"
    token_bytes = shape.token_numbers * dtype.itemsize
    token_bytes += 0 if drafter is None else drafter.token_bytes
    meter = PeakMeter(device)
    largest = NO_STEP
    if is_card:
        most_tokens = before.num_bytes // token_bytes
        largest = _measure_steps(source, model, meter, most_tokens, kept)
        taken = largest.others_bytes or 0
        before = before._replace(num_bytes=max(0, before.num_bytes - taken))
    block_bytes = token_bytes * config.block_size
    dummy_bytes = block_bytes if is_card else 0
    dummy_bytes += copy_bytes(config, block_bytes, device)
    draft_bytes = 0 if drafter is None else _draft_bytes(config, model, drafter)
    peak_bytes = largest.num_bytes + dummy_bytes + draft_bytes
    left = int(share_of(is_card=is_card) * (before.num_bytes - peak_bytes))
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
    num_blocks = choose_blocks(before, demand, is_card=is_card)
    return BlockRoom(num_blocks, windows, meter.passing_bytes, largest)


def _measure_steps(
    source: ModelSource,
    model: Network,
    meter: PeakMeter,
    most_tokens: int,
    kept: StateMemory | None,
) -> LargestStep:
    """Run the largest steps of an engine with at most `most_tokens` of keys and values on its card.
    Returns their memory by `meter`, without the states, which have a size of their own.
    """
    config, device = source.config, model.device
    probed, max_seqs = shallow(model), None if kept is None else kept.num_seqs
    facts = probe_facts(config, model, most_tokens, max_seqs)
    dtype = kv_dtype(config, model.weights.embedding.dtype)
    with meter:
        cache = KvCache(probed.config, 1, config.block_size, device, dtype, 1)
        runner = ModelRunner(probed, cache, facts, source.model_dir)
        run_largest_steps(runner)
        state_bytes = runner.state_bytes
    return LargestStep(meter.peak_bytes - state_bytes, meter.others_bytes)


def _draft_bytes(config: WorkerConfig, model: Network, drafter: Drafter) -> int:
    """Bytes that the largest step takes for its drafter: the taps, their mixture, and rows of keys
    and values.
    """
    row = model.config.hidden_size * model.weights.embedding.itemsize
    return config.token_budget * row * (len(drafter.taps) + ROWS_OF_A_PASS)


def _least_blocks(blocks: BlockRoom, ranks: Ranks | None) -> BlockRoom:
    """The blocks with the numbers for which all ranks have room."""
    if ranks is None:
        return blocks
    windows = blocks.windows
    if windows is not None:
        sizes = windows.sizes._replace(num_blocks=ranks.least(windows.sizes.num_blocks))
        windows = windows._replace(sizes=sizes, num_snapshots=ranks.least(windows.num_snapshots))
    return blocks._replace(num_blocks=ranks.least(blocks.num_blocks), windows=windows)
