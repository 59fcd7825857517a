"""On a card: layers that keep only their window answer as if they kept all tokens."""

from pathlib import Path

import pytest
import torch

from benchmarks.drive import fresh_runner
from tests.fakes.tiny_families import write_family
from tests.workers.engine.step_cases import as_on_card
from tests.workers.engine.test_windows import (
    BLOCK,
    PROMPTS,
    answers_of,
    driven,
    keeping_windows,
    load,
)
from workers.engine.graphs.capture import CudaCapture
from workers.scheduler import WindowSizes, most_kept

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "gemma4-e", "gpt_oss"])
def test_windows_answer_as_all_tokens(tmp_path: Path, family: str) -> None:
    """Windows answer as all tokens do, in chunks beside decodes, behind hits, preempted, and in
    graphs a step ahead.
    """
    keys = {"device": "cuda", "dtype": "float32"}
    keeps_all = load(write_family(tmp_path, family), **keys)
    assert keeps_all.windows is None
    expected = [answers_of(driven(keeps_all, [prompt]))[0] for prompt in PROMPTS]
    runner = keeping_windows(tmp_path, **keys)
    assert runner.windows is not None
    chunked = driven(fresh_runner(runner), PROMPTS, 2, token_budget=48, max_seqs=4)
    assert answers_of(chunked) == expected * 2
    few = WindowSizes(most_kept(runner.windows.window, BLOCK) + 6, runner.windows.window)
    scarce = driven(fresh_runner(runner), PROMPTS, 2, max_seqs=4, window_sizes=few)
    assert answers_of(scarce) == expected * 2
    assert scarce.num_preemptions > 0
    graphs = as_on_card(runner, CudaCapture())
    ahead = driven(graphs, PROMPTS, 2, token_budget=100, max_seqs=3, looks_ahead=True)
    assert answers_of(ahead) == expected * 2
