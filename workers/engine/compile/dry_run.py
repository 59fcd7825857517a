"""A dry run: a start without card, weights or memory that records the kernels of the real start.

Owns what is run: the largest steps, the warm-up, the capture of graphs and draws with other
parameters. The code is that of the real start; tensors have shapes only (`kernels.recorder`). Must
not know how kernels are compiled, nor when.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import torch

from config import DUMMY_PREFIX, INDEX_DRAFTERS, WorkerConfig
from kernels.choose import has_fp8
from kernels.linear import check_int4
from kernels.recorder import RecordedKernel, record_launches
from protocol.sampling import SamplingParams
from workers.engine.compile.shapes_only import ShapesOnly
from workers.engine.drafting.description import MtpShape, names_head, read_drafter
from workers.engine.drafting.drafter import Drafter
from workers.engine.drafting.dummy import drawn_drafter
from workers.engine.drafting.recurrent import RecurrentDrafter
from workers.engine.graphs.capture import run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.models.description import ModelDescription
from workers.engine.models.dummy import draw_weights
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.model_config import read_model_config
from workers.engine.models.network import Network
from workers.engine.models.weights import ModelWeights
from workers.engine.peak_probe import largest_plans
from workers.engine.runner import ModelRunner
from workers.engine.settings import (
    compute_dtype,
    kv_dtype,
    layer_change,
    probe_facts,
    vocabulary_form,
    window,
)
from workers.engine.step.masks import AnyToken
from workers.engine.tier.page_words import PageWords
from workers.engine.warm_up import DRAFTS, draft_plans, prepare_first, warm_up_plans
from workers.model_dir import drafter_dir
from workers.speculation import depths_up_to

_NOWHERE: Final = torch.device("meta")

_LAYERS: Final = 2
"""How many layers are run, or more if there are more kinds. Two, because the last layer of a step
may have fewer rows than the others, which are all alike."""


_PROMPTS: Final = (12, 24, *range(48, 257, 16), *range(288, 3073, 32))
"""Tokens. A step without a graph has kernels for its number of rows: up to four wide products for
every 16 rows, and products in 4 bits from 9 and from 17 rows on. Beyond 256 rows only weights in 8
bits with scales by block have more, a few sizes of tiles: of ten shapes to 8,192 rows eight have
none besides these, two have one. The engine would stand still while it compiles them, 0.3 to 0.7 s
each."""

_OTHERS: Final = (
    SamplingParams(max_tokens=2, top_p=0.5),
    SamplingParams(max_tokens=2, presence_penalty=1.0),
    SamplingParams(max_tokens=2, presence_penalty=1.0, top_p=0.5),
)
"""Penalties make float32 logits, for which the draw has kernels of its own: six with filters. To
compile them takes more than a second, in which the first such request would hold up all others."""


_DEEP: Final = 3
"""The greatest depth that is run of a drafter that makes its drafts one by one."""


def dry_run(config: WorkerConfig, model_dir: Path) -> Iterator[list[RecordedKernel]]:
    """Lists of kernels in the order of need. First those that this worker's start needs before its
    first answer; then one list for each further graph; those of prompts without a graph; those of a
    drafter; at last those of filters, penalties and grammars.

    Triton's driver must stand for a card (`kernels.recorder.pretend_device`). Raises `ConfigError`.
    """
    shape = read_model_config(model_dir)
    with record_launches() as recorded, ShapesOnly():
        model = _model(config, shape)
        runner = _runner(config, model, model_dir)
        for plan in largest_plans(runner.facts):
            runner.launch(plan)
        runner = _runner(config, model, model_dir)
        for plan in warm_up_plans(runner.facts, num_drafts=DRAFTS if runner.verifies else 0):
            runner.launch(plan)
        prepare_first(runner)
        _copy_pages(config, shape, runner)
        # One more is captured while the first request is on its way.
        runner.prepare(pending_only=False)
        yield list(recorded.values())
        known = len(recorded)
        while runner.prepare(pending_only=False):
            yield list(recorded.values())[known:]
            known = len(recorded)
        bare = _runner(config, model, model_dir)
        for plan in warm_up_plans(bare.facts, prompts=_PROMPTS):
            bare.launch(plan)
        yield list(recorded.values())[known:]
        known = len(recorded)
        if (drafter := _drafter(config, shape, model, model_dir)) is not None:
            drafting_runner = _runner(config, model, model_dir, drafter)
            # One list for each depth, the deepest first: the kernels of a full block are needed
            # first.
            for depth in reversed(_depths(config, drafter)):
                _draft(drafting_runner, depth)
                yield list(recorded.values())[known:]
                known = len(recorded)
        for sampling in _OTHERS:
            # The plans of one short sequence.
            for plan in islice(warm_up_plans(runner.facts, sampling), 3):
                runner.launch(plan)
        # A grammar without penalties: its mask kernel; the rest are the kernels of penalties.
        for plan in islice(warm_up_plans(runner.facts, grammar=AnyToken()), 3):
            runner.launch(plan)
        yield list(recorded.values())[known:]


def _copy_pages(config: WorkerConfig, shape: ModelDescription, runner: ModelRunner) -> None:
    """Launch the copies of a host cache, if the engine will have one."""
    if not config.host_cache_bytes:
        return
    caches = [runner.cache]
    drafter = _drafter(config, shape, runner.model, runner.model_dir)
    if drafter is not None:
        drafter.take_cache(1, runner.facts.block_size)
        caches += [] if drafter.cache is None else [drafter.cache]
    PageWords(caches, None, None).launch_once(_NOWHERE)


def _model(config: WorkerConfig, shape: ModelDescription) -> Network:
    few = shape.with_layers(shape.sample(_LAYERS))
    weights = _weights(config, few, compute_dtype(config, few, _NOWHERE))
    if weights.has_int4:
        check_int4(_NOWHERE, weights.embedding.dtype)
    return Network(few, weights, window(config, few), invariant=config.invariant)


def _drafter(
    config: WorkerConfig, shape: ModelDescription, model: Network, model_dir: Path
) -> Drafter | None:
    """The drafter that the engine will have, if its directory is on this host already."""
    path = _drafter_dir(config, model_dir)
    if path is None:
        return None
    drafter = read_drafter(path, shape)
    if not isinstance(drafter, MtpShape):
        # Only `_LAYERS` layers are run, so the real taps may not exist.
        drafter = msgspec.structs.replace(drafter, taps=(0,) * len(drafter.taps))
    fp8 = model.weights.embedding.dtype == torch.bfloat16 and has_fp8(_NOWHERE)
    return drawn_drafter(
        drafter, model, window(config, model.config), fp8=fp8,
        draws_experts=config.model.startswith(DUMMY_PREFIX),
    )  # fmt: skip


def _drafter_dir(config: WorkerConfig, model_dir: Path) -> Path | None:
    chosen = config.drafting
    if chosen is None:
        return None
    if chosen.drafter not in INDEX_DRAFTERS:
        return drafter_dir(chosen.drafter)
    return model_dir if config.speculation == "auto" and names_head(model_dir) else None


def _depths(config: WorkerConfig, drafter: Drafter) -> tuple[int, ...]:
    """The depths to run; a drafter of one draft at a time has the same kernels at any depth."""
    fixed = config.drafting.depth if config.drafting is not None else "adaptive"
    if fixed != "adaptive":
        return (min(fixed, drafter.max_depth),)
    depths = depths_up_to(drafter.max_depth)
    if isinstance(drafter, RecurrentDrafter):
        return tuple([depth for depth in depths if depth <= _DEEP])
    return depths


def _draft(runner: ModelRunner, depth: int) -> None:
    """Run steps that verify drafts and draft `depth` more, with graphs and without."""
    while runner.prepare(pending_only=False):
        pass
    for plan in draft_plans(runner.facts, depth):
        runner.launch(plan)
    while runner.prepare(pending_only=True):
        pass


def _runner(
    config: WorkerConfig, model: Network, model_dir: Path, drafter: Drafter | None = None
) -> ModelRunner:
    facts = probe_facts(config, model)
    num_blocks = facts.kv_tokens // facts.block_size
    dtype = kv_dtype(config, model.weights.embedding.dtype)
    cache = KvCache(model.config, num_blocks, facts.block_size, _NOWHERE, dtype)
    if drafter is not None:
        drafter.take_cache(num_blocks + 1, facts.block_size)
    verifies = config.drafting is not None
    steps = DeviceSteps(model, cache, facts, run_again, drafter=drafter, verifies=verifies)
    return ModelRunner(model, cache, facts, model_dir, steps, verifies=verifies)


def _weights(config: WorkerConfig, shape: ModelDescription, dtype: torch.dtype) -> ModelWeights:
    return draw_weights(
        shape, _NOWHERE, dtype, change=layer_change(config, shape, dtype, _NOWHERE),
        vocabulary=vocabulary_form(config, shape),
        draws_experts=config.model.startswith(DUMMY_PREFIX),
    )  # fmt: skip
