"""What an engine computes next: sequences, blocks, queues, plans. Pure."""

from workers.scheduler.admission import SchedulerLimits, largest_id
from workers.scheduler.block_events import BlockEvents
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.committing import Outgoing
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
from workers.scheduler.scheduler import Scheduler
from workers.scheduler.sequence import Key
from workers.scheduler.step_cost import StepCost
from workers.scheduler.swapping import SwapSpace
from workers.scheduler.windows import WindowPool, WindowSizes, first_kept, most_kept
