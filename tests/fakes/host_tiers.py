"""Host tiers for runners in tests."""

from workers.engine.runner import ModelRunner
from workers.engine.tier.engine_tier import EngineTier, Memories
from workers.scheduler.tier import TierLayout


def tier_for(
    runner: ModelRunner, num_pages: int, fd: int | None = None, model: bytes = b"a test"
) -> EngineTier:
    """A tier of `num_pages` pages for the runner, which has it from now on. `model` stands for the
    weights in the identity of its layout.
    """
    drafter = runner.drafter
    cache = runner.cache
    caches = (cache,) if drafter is None or drafter.cache is None else (cache, drafter.cache)
    memories = Memories(caches, runner.kept)
    words = memories.words
    aligned = -(-words.page_bytes // 4096) * 4096
    layout = TierLayout(memories.identity(model), aligned, num_pages)
    tier = EngineTier(memories, layout, fd, cache.memories[0].device)
    runner.attach(tier)
    return tier
