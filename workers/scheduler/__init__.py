"""What an engine computes next: sequences, blocks, queues, plans. Pure."""

from workers.scheduler.admission import largest_id
from workers.scheduler.block_events import BlockEvents
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.concurrency import CARD_SEQS, CPU_SEQS, most_sequences
from workers.scheduler.drafting import DraftCandidate, Proposer
from workers.scheduler.held import HeldCounts, HeldPlaces
from workers.scheduler.meters import StepMeter
from workers.scheduler.plan import (
    NO_MOVES,
    NO_SLOT,
    ON_CARD,
    Chunk,
    DraftTiming,
    Sampled,
    SequenceMove,
    SequenceMoves,
    SequenceStart,
    StepPlan,
    StepResult,
)
from workers.scheduler.saving import PrefixStates, SavePolicy
from workers.scheduler.scheduler import Outgoing, Scheduler, SchedulerLimits
from workers.scheduler.sequence import Key
from workers.scheduler.step_cost import StepCost
from workers.scheduler.swapping import SwapSpace
from workers.scheduler.windows import WindowPool, WindowSizes, first_kept, most_kept

__all__ = [
    "CARD_SEQS",
    "CPU_SEQS",
    "NO_MOVES",
    "NO_SLOT",
    "ON_CARD",
    "BlockEvents",
    "BlockManager",
    "Chunk",
    "DraftCandidate",
    "DraftTiming",
    "HeldCounts",
    "HeldPlaces",
    "Key",
    "Outgoing",
    "PrefixStates",
    "Proposer",
    "Sampled",
    "SavePolicy",
    "Scheduler",
    "SchedulerLimits",
    "SequenceMove",
    "SequenceMoves",
    "SequenceStart",
    "StepCost",
    "StepMeter",
    "StepPlan",
    "StepResult",
    "SwapSpace",
    "WindowPool",
    "WindowSizes",
    "first_kept",
    "largest_id",
    "most_kept",
    "most_sequences",
]
