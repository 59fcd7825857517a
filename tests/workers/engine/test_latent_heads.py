"""The MTP heads of GLM-4.7-Flash and DeepSeek-V3 draft what the published description says, and
change no text.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.drive import Drive, fresh_runner
from config import SpeculationConfig, WorkerConfig
from protocol.sampling import SamplingParams
from tests.fakes.latent_heads import ReferenceHead, make_right, write_with_head
from tests.fakes.tiny_models import load_tiny
from tests.workers.engine.drafting.feed import Feed
from workers.engine.drafting.demand import draft_demand
from workers.engine.drafting.description import read_drafter
from workers.engine.drafting.load import load_drafter
from workers.engine.drafting.speculating import speculation_for
from workers.engine.graphs.capture import run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.models.model_config import read_model_config
from workers.engine.runner import ModelRunner
from workers.engine.step.host_steps import HostSteps
from workers.speculation import Speculation

FAMILIES = ("glm4_moe_lite", "deepseek_v3")
SIZES: dict[str, Any] = {"kv_tokens": 4096, "block_size": 16, "max_seqs": 8}
GREEDY = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
FEW_BLOCKS = 26


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_drafts_are_those_of_the_published_description(family: str, tmp_path: Path) -> None:
    """Prompts in chunks, two sequences at once, garbage behind every accepted draft."""
    path = write_with_head(tmp_path / "model", family)
    target = load_tiny(path, kv_tokens=64).model
    drafter = load_drafter(path, target, 400)
    reference = ReferenceHead(path, tmp_path / "reference")
    hidden, vocab = target.config.hidden_size, target.config.vocab_size
    feed = Feed(drafter, hidden, count=2, seed=4, vocab=vocab)
    for story, length in zip(feed.stories, (37, 3), strict=True):
        feed.prompt(story, length, chunks=2)
    for accepted in ([0, 2], [3, 1], [1, 0], [2, 3], [4, 4]):
        drafted = feed.verify(4, accepted)
        assert drafted.confidence is not None
        for row, story in enumerate(feed.stories):
            states = target.final_norm(story.taps)
            ids, logits = reference.draft(states, story.ids[1:], 4)
            assert drafted.ids[row].tolist() == ids
            best = logits.softmax(-1).amax(-1)
            torch.testing.assert_close(drafted.confidence[row], best, atol=1e-4, rtol=1e-3)


def _drafting(plain: ModelRunner, path: Path, *, is_card: bool) -> tuple[ModelRunner, Speculation]:
    """With the head in `path`, three drafts at once, and steps of the host or as on a card."""
    bare = fresh_runner(plain)
    given = bare.model, bare.cache, bare.facts
    drafter = load_drafter(path, bare.model, bare.facts.context_length)
    drafter.take_cache(bare.cache.num_blocks + 1, bare.facts.block_size)
    steps: DeviceSteps | HostSteps = HostSteps(*given, drafter)
    if is_card:
        steps = DeviceSteps(*given, run_again, drafter=drafter, verifies=True)
        while steps.prepare(pending_only=False):
            pass
    runner = ModelRunner(*given, bare.model_dir, steps)
    chosen = SpeculationConfig(str(path), depth=3)
    config = WorkerConfig("w", str(path), "m", (), token_budget=256, speculation=chosen)
    found = speculation_for(config, runner)
    assert found is not None
    return runner, found


def _answers(drive: Drive, prompts: list[list[int]]) -> list[list[int]]:
    numbers = [drive.submit(prompt, GREEDY) for prompt in prompts]
    drive.finish()
    return [drive.answers[number].outputs for number in numbers]


def _prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(6)
    prompts = [
        torch.randint(2, 151, (length,), generator=generator).tolist()
        for length in (1, 2, 33, 64, 100, 150)
    ]
    prompts[4][:70] = prompts[5][:70]
    return prompts


@pytest.mark.parametrize(
    ("family", "is_card"),
    [
        ("glm4_moe_lite", True),
        ("deepseek_v3", False),
        pytest.param("glm4_moe_lite", False, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", True, marks=pytest.mark.slow),
    ],
)
def test_tokens_with_drafts_are_those_without(
    family: str, *, is_card: bool, tmp_path: Path
) -> None:
    """Some drafts are right. Steps of the host, and as on a card. 64 greedy tokens alone, in a
    batch, chunked, behind hits, and after preemptions.
    """
    path = write_with_head(tmp_path / "model", family)
    make_right(path, influence=0.6)
    plain = load_tiny(path, **SIZES)
    prompts = _prompts()
    expected = [_answers(Drive(fresh_runner(plain)), [prompt])[0] for prompt in prompts]

    def drive(**keys: Any) -> tuple[Drive, Speculation]:
        runner, speculation = _drafting(plain, path, is_card=is_card)
        return Drive(runner, proposer=speculation, looks_ahead=is_card, **keys), speculation

    batch, speculation = drive()
    for _ in ("cold", "cached"):
        assert _answers(batch, prompts) == expected
    hits = [answer.cached_tokens for answer in list(batch.answers.values())[6:]]
    assert hits == [(len(prompt) - 1) // 16 * 16 for prompt in prompts]
    counted = speculation.counters
    assert 0 < sum(counted.accepted) < sum(counted.verified)
    chunked, _ = drive(token_budget=16)
    assert _answers(chunked, prompts) == expected
    poor, _ = drive(num_blocks=FEW_BLOCKS)
    assert _answers(poor, prompts) == expected
    assert poor.num_preemptions > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_with_drafts_on_a_card(family: str, tmp_path: Path) -> None:
    """Tokens with drafts on a card, by graphs, in float32; a second time behind hits."""
    path = write_with_head(tmp_path / "model", family)
    make_right(path, influence=0.6)
    keys = SIZES | {"device": "cuda", "dtype": "float32"}
    prompts = _prompts()
    expected = _answers(Drive(load_tiny(path, **keys), looks_ahead=True), prompts)
    chosen = SpeculationConfig(str(path), depth=3)
    runner = load_tiny(path, speculation=chosen, **keys)
    while runner.prepare(pending_only=False):
        pass
    config = WorkerConfig("w", str(path), "m", (), token_budget=256, speculation=chosen)
    speculation = speculation_for(config, runner)
    assert speculation is not None
    drive = Drive(runner, proposer=speculation, looks_ahead=True)
    assert _answers(drive, prompts) == expected
    while runner.prepare(pending_only=True):
        pass
    assert _answers(drive, prompts) == expected
    assert sum(speculation.counters.accepted) > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_is_made_to_be_right_is_accepted(family: str, tmp_path: Path) -> None:
    """One drawn at random is right once in 151 times, or so."""
    path = write_with_head(tmp_path / "drawn", family)
    shares = []
    for is_right in (False, True):
        if is_right:
            make_right(path, influence=0.0)
        runner, speculation = _drafting(load_tiny(path, **SIZES), path, is_card=False)
        _answers(Drive(runner, proposer=speculation), _prompts())
        counted = speculation.counters
        assert sum(counted.verified) > 0
        shares.append(sum(counted.accepted) / sum(counted.verified))
    assert shares[0] < 0.1
    assert shares[1] > 0.9


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_finds_the_head_and_a_plan_counts_it(family: str, tmp_path: Path) -> None:
    """`auto` finds the head, and a plan counts it: its weights except norms, and 40 numbers of a
    token in its own cache; embedding and head are the model's.
    """
    path = write_with_head(tmp_path / "model", family)
    drafter = load_tiny(path, speculation="auto", **SIZES).drafter
    assert drafter is not None
    assert (drafter.name, drafter.token_bytes) == ("mtp", 4 * 40)
    target = read_model_config(path)
    planned = draft_demand(read_drafter(path, target), target, fp8=False)
    assert planned.token_bytes == 2 * 40
    assert 0.9 * drafter.num_bytes < 2 * planned.weights_bytes < 1.1 * drafter.num_bytes


def _without(path: Path, *names: str) -> None:
    tensors = load_file(path / "model.safetensors")
    kept = {
        name: tensor for name, tensor in tensors.items() if not any(part in name for part in names)
    }
    assert len(kept) < len(tensors)
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})


def test_what_a_head_shares_may_be_left_out(tmp_path: Path) -> None:
    """Copies of embedding and output head."""
    path = write_with_head(tmp_path / "model", "glm4_moe_lite")
    _without(path, "layers.3.embed_tokens", "layers.3.shared_head.head")
    drafter = load_tiny(path, speculation="auto", **SIZES).drafter
    assert drafter is not None


@pytest.mark.parametrize(
    ("missing", "reason"),
    [("layers.3.", "has no tensors model.layers.3.*"), ("eh_proj", "layers.3.eh_proj.weight")],
)
def test_a_head_that_is_not_there_is_left_out(
    missing: str, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A head that is not there is left out with one line; transformers leaves heads out where it
    saves a model.
    """
    path = write_with_head(tmp_path / "model", "glm4_moe_lite")
    _without(path, missing)
    assert load_tiny(path, speculation="auto", **SIZES).drafter is None
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "MTP head" in line]
    assert reason in line


def test_two_layers_of_a_head_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two layers of a head are refused, with the key that states them."""
    path = write_with_head(tmp_path / "model", "deepseek_v3")
    config = json.loads((path / "config.json").read_bytes())
    (path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 2}))
    assert load_tiny(path, speculation="auto", **SIZES).drafter is None
    assert "num_nextn_predict_layers = 2 is not supported" in capfd.readouterr().err
