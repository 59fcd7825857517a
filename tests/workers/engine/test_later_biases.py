"""A bias that a mixture's norm adds, where the product ahead of it would need a pass for it."""

from pathlib import Path
from unittest.mock import patch

import pytest

from benchmarks.drive import Drive, fresh_runner
from kernels import experts
from protocol.sampling import SamplingParams
from tests.fakes.tiny_families import write_family
from tests.workers.engine.pairs import sure_pair

NUM_OUTPUTS = 16


@pytest.mark.parametrize("least_rows", [1, 10])
def test_answers_are_the_same(least_rows: int, tmp_path: Path) -> None:
    """For whole prompts alone as on a card, and in every step; the last layer among them."""
    pair = sure_pair(
        lambda seed: write_family(tmp_path / str(seed), "gpt_oss", seed=seed), NUM_OUTPUTS
    )
    greedy = SamplingParams(max_tokens=NUM_OUTPUTS, temperature=0.0, ignore_eos=True)
    drive = Drive(fresh_runner(pair.runner), token_budget=1024, max_seqs=8)
    with (
        patch(
            "workers.engine.models.network.adds_bias_apart",
            lambda x, *_, **__: x.shape[0] >= least_rows,
        ),
        patch.object(experts, "bias_norm", wraps=experts.bias_norm) as seen,
    ):
        for prompt in pair.prompts:
            drive.submit(prompt, greedy)
        drive.finish()
    pair.assert_greedy(drive)
    assert seen.called
    assert all(call.args[0].shape[0] >= least_rows for call in seen.call_args_list)
