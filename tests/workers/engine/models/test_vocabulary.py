"""The head in 8 or 4 bits, and the embedding in the host's memory."""

import gc
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from config import WorkerConfig
from kernels import int4
from kernels.fp8 import Fp8Weight, dequantise, quantize_weight
from kernels.int4 import Int4Weight
from kernels.linear import norm_linear
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.drafting.weights import DraftingHead
from workers.engine.memory.forecast import weights_bytes
from workers.engine.memory.host_pool import HostPool
from workers.engine.models import vocabulary
from workers.engine.models.model_config import read_model_config
from workers.engine.models.vocabulary import VocabularyForm, logits, norm_before, seen_by
from workers.engine.models.weights import ModelWeights
from workers.engine.runner import ModelRunner
from workers.engine.settings import vocabulary_form
from workers.memory_room import host_room
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan

NEEDS_CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
SMALL: dict[str, Any] = {"int4": Int4Weight, "fp8": Fp8Weight}
SHAPE = {"hidden_size": 160, "vocab_size": 331}


def _state_and_logits(runner: ModelRunner) -> tuple[Tensor, Tensor]:
    """The state and the logits of all positions of one prompt."""
    ids = array("I", range(2, 50))
    start = SequenceStart(0, ids, len(ids), SamplingParams(max_tokens=1), seed=0)
    plan = StepPlan(0, (start,), (Chunk(0, 0, len(ids), (0, 1), samples=False),), ended=())
    ((_, hidden),) = runner.hidden(plan)
    with torch.inference_mode():
        return hidden, runner.model.logits(hidden).double()


def _draw(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator(device).manual_seed(3)
    return torch.randn(*shape, device=device, generator=generator, dtype=dtype)


@pytest.mark.parametrize("form", SMALL)
@pytest.mark.parametrize("family", ["plain", "tied", "gemma3", "qwen3_5"])
def test_a_narrow_head_changes_logits_a_little_and_no_state(
    form: str, family: str, tmp_path: Path
) -> None:
    """A tied model keeps its embedding as it is; a norm of 1 + w is rounded for the product."""
    if family in ("plain", "tied"):
        write_tiny_model(tmp_path, **SHAPE, tie_word_embeddings=family == "tied")
    else:
        write_family(tmp_path, family, hidden_size=64)
    exact, small = (load_tiny(tmp_path, kv_tokens=512, head=each) for each in ("auto", form))
    weights, before = small.model.weights, exact.model.weights
    assert isinstance(weights.head, SMALL[form])
    assert small.facts.dtype == f"float32+{form}head"
    assert torch.equal(weights.embedding, before.embedding)
    (state, logits), (known, expected) = _state_and_logits(small), _state_and_logits(exact)
    assert torch.equal(state, known)
    error = float((logits - expected).norm() / expected.norm())
    assert 1e-4 < error < (0.04 if form == "fp8" else 0.15)
    config = read_model_config(tmp_path)
    forecast = weights_bytes(config, "bfloat16", vocabulary=VocabularyForm("auto"))
    saved = forecast - weights_bytes(config, "bfloat16", vocabulary=VocabularyForm(form))  # type: ignore[arg-type]
    assert saved == (0 if config.tied else before.head.nbytes // 2) - _in_16_bits(weights.head)


def _in_16_bits(head: Fp8Weight | Int4Weight | Any) -> int:
    """What a head takes where the model is in 16 bits; here its scales are in float32."""
    excess = head.scales.nbytes // 2 if isinstance(head, Int4Weight) else 0
    return int(head.nbytes - excess)


def test_what_is_not_asked_for_stays_as_it_is() -> None:
    """A tied head is the embedding itself. On a CPU the embedding is on the host anyway."""
    embedding, head = _draw(11, 32), _draw(11, 32)
    for form in (VocabularyForm(), VocabularyForm(on_host=True)):
        for each in (head, embedding):
            kept = form.changed(embedding, each)
            assert kept[0] is embedding
            assert kept[1] is each
        assert not form.moves(torch.device("cpu"))


def test_the_norm_before_a_narrow_head_is_in_the_dtype_of_the_rows() -> None:
    """The norm before a narrow head has the dtype of the rows; elsewhere norms of 1 + w are
    float32.
    """
    head, norm = _draw(11, 32, dtype=torch.bfloat16), _draw(32)
    assert norm_before(head, norm, torch.bfloat16) is norm
    narrow = norm_before(quantize_weight(head), norm, torch.bfloat16)
    assert torch.equal(narrow, norm.to(torch.bfloat16))


def test_a_drafter_takes_a_narrow_head_as_it_is() -> None:
    """A drafter takes a narrow head as it is, and makes a copy in 8 bits of one in 16 where the
    card has 8-bit floats.
    """
    head = _draw(11, 32)
    small = quantize_weight(head)
    for given, fp8, copied in (
        (head, False, 0),
        (small, True, 0),
        (head, True, small.nbytes),
        (int4.quantize(head), True, 0),
    ):
        model = ModelWeights(head, (), _draw(32), given)
        drafting = DraftingHead(model, None, fp8=fp8)
        assert drafting.num_bytes == copied
        used = small if copied else given
        expected = logits(_draw(3, 32), model.norm, 1e-6, used)
        assert torch.equal(drafting.logits(_draw(3, 32), 1e-6), expected)


@pytest.mark.parametrize("rows", [1, 256, 257, 600])
def test_many_rows_go_by_a_narrow_head_in_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows go through a narrow head in parts, because for more rows at once the kernels would
    widen the whole matrix; the numbers are the same.
    """
    seen: list[int] = []

    def counted(x: Tensor, *rest: Any, **named: Any) -> Tensor:
        seen.append(len(x))
        return norm_linear(x, *rest, **named)

    monkeypatch.setattr(vocabulary, "norm_linear", counted)
    hidden, norm, head = _draw(rows, 32), _draw(32), _draw(33, 32)
    for kept, most in ((int4.quantize(head), 256), (quantize_weight(head), 128), (head, rows)):
        seen.clear()
        expected = norm_linear(hidden, norm, 1e-6, kept)
        torch.testing.assert_close(logits(hidden, norm, 1e-6, kept), expected)
        assert sum(seen) == rows
        assert max(seen) <= most
        assert len(seen) == -(-rows // most)


@pytest.mark.parametrize(
    ("settings", "shape", "said"),
    [
        ({"embedding": "host"}, {"tie_word_embeddings": True}, "one matrix for embedding and head"),
        ({"head": "int4"}, {"hidden_size": 144}, "multiple of 32 numbers"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    settings: dict[str, Any], shape: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """What cannot be is refused in one line before any weights are read."""
    write_tiny_model(tmp_path, **shape)
    worker = WorkerConfig("w", str(tmp_path), "m", (), 64, **settings)
    with pytest.raises(ConfigError, match=said) as raised:
        vocabulary_form(worker, read_model_config(tmp_path))
    assert "\n" not in str(raised.value)
    both = WorkerConfig("w", str(tmp_path), "m", (), 64, head="fp8", embedding="host")
    assert vocabulary_form(both, read_model_config(tmp_path)) == VocabularyForm("fp8", on_host=True)


@pytest.mark.gpu
@NEEDS_CARD
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_card_reads_rows_of_the_hosts_memory(dtype: torch.dtype) -> None:
    """A card reads rows of the host's memory, in a graph too, whose ids change; the memory stays
    locked until the card's tensor goes.
    """
    card = torch.device("cuda", torch.cuda.current_device())
    before = torch.cuda.memory_allocated()
    rows = _draw(4099, 160, dtype=dtype)
    pool = HostPool(rows.nbytes, host_room(), locks=True)
    kept = pool.tensor((4099, 160), dtype)
    kept.copy_(rows)
    seen = seen_by(card, kept)
    assert (seen.device, seen.dtype, seen.shape) == (card, dtype, rows.shape)
    assert torch.cuda.memory_allocated() == before
    del pool, kept
    gc.collect()
    ids = torch.tensor([0, 4098, 17, 17], device=card)
    assert torch.equal(F.embedding(ids, seen).cpu(), rows[ids.cpu()])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = F.embedding(ids, seen)
    for start in (0, 2048, 4095):
        ids.copy_(torch.arange(start, start + 4))
        graph.replay()
        assert torch.equal(out.cpu(), rows[start : start + 4])


@pytest.mark.gpu
@NEEDS_CARD
@pytest.mark.parametrize("head", ["auto", "fp8", "int4"])
def test_an_engine_computes_the_same_with_its_embedding_on_the_host(
    head: str, tmp_path: Path
) -> None:
    """An engine computes the same to the bit with its embedding on the host; the card has as many
    bytes more.
    """
    write_tiny_model(tmp_path, **SHAPE | {"vocab_size": 4099}, tie_word_embeddings=False)
    given: dict[str, Any] = {"device": "cuda", "head": head, "kv_tokens": 512}
    near, far = load_tiny(tmp_path, **given), load_tiny(tmp_path, **given, embedding="host")
    weights = far.model.weights
    assert weights.host_bytes == weights.embedding.nbytes
    assert weights.num_bytes() == near.model.weights.num_bytes() - weights.host_bytes
    (state, logits), (known, expected) = _state_and_logits(far), _state_and_logits(near)
    assert torch.equal(state, known)
    assert torch.equal(logits, expected)


def test_the_head_in_8_bits_is_the_matrix_rounded(tmp_path: Path) -> None:
    """The head in 8 bits is the matrix rounded, and not another one, nor one of another order."""
    write_tiny_model(tmp_path, **SHAPE)
    exact, small = (
        load_tiny(tmp_path, kv_tokens=512),
        load_tiny(tmp_path, kv_tokens=512, head="fp8"),
    )
    head = small.model.weights.head
    assert isinstance(head, Fp8Weight)
    wide = exact.model.weights.head
    assert isinstance(wide, Tensor)
    torch.testing.assert_close(dequantise(head, torch.float32), wide, rtol=2.0**-4, atol=1e-4)
