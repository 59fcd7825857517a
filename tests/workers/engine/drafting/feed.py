"""Steps for drafters without a target: random states of tokens, some accepted, most not."""

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.attention import AttentionPlan, Segment, plan_attention
from workers.engine.drafting.drafter import Drafted, Drafter, DraftStep

BLOCK = 16
NUM_BLOCKS = 80
CPU = torch.device("cpu")


@dataclass
class Story:
    """A sequence: `ids` up to the anchor, which is the last, and the states of those before it."""

    blocks: tuple[int, ...]
    ids: list[int]
    states: list[Tensor] = field(default_factory=list)

    @property
    def taps(self) -> Tensor:
        """[tokens before the anchor, width]."""
        return torch.stack(self.states)


class Feed:
    """Gives a drafter the passes of `count` sequences, whose rows have `width` numbers."""

    def __init__(
        self,
        drafter: Drafter,
        width: int,
        count: int,
        seed: int,
        vocab: int,
        blocks: int = NUM_BLOCKS,
    ) -> None:
        self.rng = random.Random(seed)
        self.vocab = vocab
        self._generator = torch.Generator().manual_seed(seed)
        self._drafter = drafter
        self._width = width
        drafter.take_cache(blocks + 1, BLOCK)
        free = list(range(blocks))
        self.rng.shuffle(free)
        each = blocks // count
        self.stories = [
            Story(tuple(free[at * each : (at + 1) * each]), [self.token()]) for at in range(count)
        ]

    def token(self) -> int:
        return self.rng.randrange(self.vocab)

    def prompt(self, story: Story, length: int, chunks: int) -> None:
        """Compute a prompt in so many chunks; the anchor is the token behind it."""
        cuts = sorted(self.rng.sample(range(1, length), chunks - 1))
        for begin, end in zip([0, *cuts], [*cuts, length], strict=True):
            self._pass([(story, end - begin, end - begin)], depth=0)

    def verify(self, depth: int, accepted: list[int]) -> Drafted:
        """One pass over `depth` drafts of each story, of which so many are right; then draft."""
        rows = [
            (story, depth + 1, right + 1)
            for story, right in zip(self.stories, accepted, strict=True)
        ]
        return self._pass(rows, depth)

    def _pass(self, parts: list[tuple[Story, int, int]], depth: int) -> Drafted:
        """Rows of each story, of which the first so many are kept."""
        token_ids: list[int] = []
        next_ids: list[int] = []
        segments, last = [], []
        states = torch.randn(
            sum(length for _, length, _ in parts), self._width, generator=self._generator
        )
        for story, length, kept in parts:
            row, start = len(token_ids), len(story.states)
            story.states += list(states[row : row + kept])
            following = [self.token() for _ in range(length)]
            token_ids += [story.ids[-1], *following[:-1]]
            story.ids += following[:kept]
            next_ids += following
            segments.append(Segment(start, length, story.blocks))
            last.append(row + kept - 1)
        stories = [story for story, _, _ in parts] if depth else []

        def plan_rows(num_rows: int, offset: int) -> AttentionPlan:
            places = [
                Segment(len(story.states) + offset, num_rows, story.blocks) for story in stories
            ]
            return plan_attention(places, BLOCK, CPU)

        plan = plan_attention(segments, BLOCK, CPU)
        step = DraftStep(
            token_ids=torch.tensor(token_ids),
            next_ids=torch.tensor(next_ids),
            positions=plan.positions,
            taps=states if self._drafter.taps else None,
            hidden=states if self._drafter.reads_hidden else None,
            plan=plan,
            seqs=tuple(range(len(stories))),
            rows=torch.tensor(last[: len(stories)], dtype=torch.int64),
            anchors=torch.tensor([story.ids[-1] for story in stories], dtype=torch.int64),
            anchor_positions=torch.tensor([len(s.states) for s in stories], dtype=torch.int64),
            depth=depth,
            plan_rows=plan_rows,
        )
        return self._drafter.draft(step)
