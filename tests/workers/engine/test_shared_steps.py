"""Steps whose decodes share blocks say what each sequence would alone, with graphs and without."""

from pathlib import Path
from typing import Any, Final

import pytest
import torch

from kernels.attention import SharingCosts
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.step_cases import (
    BLOCK,
    DRAWN,
    GENERAL,
    GREEDY,
    Branch,
    as_on_card,
    plans_of_branches,
    sampled_by,
)
from workers.engine.graphs.capture import Capture, CudaCapture, run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.runner import ModelRunner
from workers.engine.step.shared_prefixes import SharedOrder, SharedPrefixes
from workers.scheduler.plan import Chunk, Sampled, StepPlan

ALWAYS: Final = SharingCosts(tile_rows=8, tile=1.0, row=0.0, step=0.0)
NEVER: Final = ALWAYS._replace(step=float("inf"))
LATE: Final = 99

BRANCHES: Final = (
    Branch(0, LATE, 0, 0, 5 * BLOCK + 3),  # of its prompt all full blocks are shared
    Branch(1, LATE, 0, 5, 7),
    Branch(1, 9, 0, 2, BLOCK),
    Branch(2, LATE, 2, 3, 1),
    Branch(3, 12, 1, 5, 30),
    Branch(5, LATE, 5, 0, 40),  # alone
)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN, GENERAL], ids=["greedy", "drawn", "general"])
def test_rows_in_another_order_say_the_same(
    host: ModelRunner, capture: Capture | None, sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences come and go, so what is shared changes; tokens and their order do not depend on
    it.
    """
    plans = plans_of_branches(BRANCHES, 16, sampling)
    expected = sampled_by(as_on_card(host, capture, NEVER), plans, ahead=1)
    found: list[SharedOrder | None] = []
    order = SharedPrefixes.order

    def see(prefixes: SharedPrefixes, chunks: list[Chunk]) -> SharedOrder | None:
        found.append(order(prefixes, chunks))
        return found[-1]

    monkeypatch.setattr(SharedPrefixes, "order", see)
    shared = sampled_by(as_on_card(host, capture, ALWAYS), plans, ahead=1)
    assert [step.keys() for step in shared] == [step.keys() for step in expected]
    assert _ids(shared) == _ids(expected)
    runs = [() if one is None else one.runs for one in found]
    assert max(map(len, runs)) > 1
    assert len(set(runs)) > 2


def test_a_sequence_in_other_blocks_shares_no_more(host: ModelRunner) -> None:
    """A preempted one comes back at another place."""
    plans = plans_of_branches(BRANCHES[:2], 6, GREEDY)
    runner = as_on_card(host, None, ALWAYS)
    steps = runner._steps
    assert isinstance(steps, DeviceSteps)
    for plan in plans:
        runner.run(plan)
    first, second = plans[-1].chunks
    ahead = [Chunk(c.seq, c.start + 1, 1, c.block_ids, samples=True) for c in (first, second)]
    assert steps._prefixes.order(ahead) is not None
    moved = tuple([block + 32 for block in second.block_ids])
    other = Chunk(second.seq, second.start + 1, 1, moved, samples=True)
    assert steps._prefixes.order([ahead[0], other]) is None


def test_items_name_the_rows_of_a_bucket(host: ModelRunner) -> None:
    """Segments stand behind the padding of the decodes, not behind the decodes."""
    runner = as_on_card(host, run_again, ALWAYS)
    steps = runner._steps
    assert isinstance(steps, DeviceSteps)
    mixed = 0
    for plan in plans_of_branches(BRANCHES, 6, GREEDY):
        runner.run(plan)
        for bucket, found in steps._mixed_step._inputs.items():
            if not found.prefills:
                continue
            mixed += 1
            words = found.words[found.places.work][: 8 * found.segments.kinds[0].num_items]
            items = words.view(-1, 8).tolist()
            rows = {row + i for row, count, *_ in items for i in range(count)}
            prefills = found.prefills
            wanted = {s.first_row + i for s in prefills for i in range(s.num_rows)}
            assert {row for row in rows if row >= bucket.num_decodes} == wanted
            steps._mixed_step.clear(bucket)
    assert mixed > 3


def _ids(steps: list[dict[int, Sampled]]) -> list[dict[int, tuple[int, ...]]]:
    return [{seq: item.ids for seq, item in step.items()} for step in steps]


WIDE: Final[dict[str, Any]] = {
    "dtype": "bfloat16",
    "head_dim": 128,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestOnCard:
    """The kernels, in graphs whose groups change from step to step."""

    def test_answers_do_not_depend_on_sharing(self, tmp_path: Path) -> None:
        """Greedy, in float32."""
        host = _load(write_tiny_model(tmp_path), {"dtype": "float32"})
        plans = plans_of_branches(BRANCHES, 30, GREEDY)
        alone = sampled_by(as_on_card(host, CudaCapture(), NEVER), plans, ahead=1)
        assert _ids(sampled_by(as_on_card(host, CudaCapture(), ALWAYS), plans, ahead=1)) == _ids(
            alone
        )
        assert _ids(sampled_by(as_on_card(host, None, ALWAYS), plans, ahead=1)) == _ids(alone)

    @pytest.mark.parametrize("config", [{}, {"kv_dtype": "fp8"}], ids=["bfloat16", "fp8"])
    def test_a_replayed_step_is_the_launched_one(
        self, tmp_path: Path, config: dict[str, Any]
    ) -> None:
        """Bit for bit, again and again, beside sequences that end and come."""
        host = _load(write_tiny_model(tmp_path, **WIDE), config)
        plans = plans_of_branches(BRANCHES, 30, DRAWN)
        runner = as_on_card(host, CudaCapture(), ALWAYS)
        found = []
        for _ in range(2):
            found.append(_ids(sampled_by(runner, plans, ahead=1)))
            runner.run(StepPlan(LATE, (), (), tuple(range(len(BRANCHES)))))
        assert found[0] == found[1]
        assert all(0 <= token < 151 for step in found[0] for ids in step.values() for token in ids)


def _load(model_dir: Path, config: dict[str, Any]) -> ModelRunner:
    sizes = {"kv_tokens": 8192, "block_size": BLOCK, "token_budget": 2048}
    return load_tiny(model_dir, device="cuda", **sizes, **config)
