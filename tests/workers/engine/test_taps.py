"""What a forward pass hands to drafters: the stream behind chosen layers, as in `transformers`."""

from pathlib import Path

import pytest
import torch

from kernels.attention import Segment, plan_attention
from tests.fakes.tiny_models import write_tiny_model
from tests.workers.engine.pairs import Pair
from workers.engine.models.network import Taps

NUM_LAYERS = 5
LAYERS = (1, 4, 0)


@pytest.fixture(name="pair")
def _pair(tmp_path: Path) -> Pair:
    return Pair(write_tiny_model(tmp_path, num_hidden_layers=NUM_LAYERS), num_outputs=1)


@torch.inference_mode()
def test_taps_are_the_hidden_states_of_transformers(pair: Pair) -> None:
    """Taps of a prompt in two chunks are the hidden states of transformers, in the order asked for;
    results are as without taps.
    """
    model, cache, ids = pair.runner.model, pair.runner.cache, torch.tensor(pair.prompts[4][:40])
    wanted = pair.reference.model(ids[None], output_hidden_states=True)
    taps, last = [], []
    for start, length in ((0, 33), (33, 7)):
        segment = Segment(start, length, tuple(range(3)))
        plan = plan_attention([segment], cache.block_size, torch.device("cpu"))
        out = torch.full((length, len(LAYERS) * model.config.hidden_size), torch.nan)
        given = model.embed(ids[start : start + length]), plan, cache
        last.append(model.forward(*given, taps=Taps(LAYERS, out)))
        taps.append(out)
        assert torch.equal(
            model.forward(model.embed(ids[start : start + length]), plan, cache), last[-1]
        )
    found = torch.cat(taps).chunk(len(LAYERS), dim=1)
    states = wanted.hidden_states
    for layer, tap in zip(LAYERS, found, strict=True):
        if layer + 1 < NUM_LAYERS:  # the last state of transformers lies behind the final norm
            torch.testing.assert_close(tap, states[layer + 1][0], atol=1e-4, rtol=0)
    assert torch.equal(found[1], torch.cat(last))
    torch.testing.assert_close(model.final_norm(found[1]), states[-1][0], atol=1e-4, rtol=0)
