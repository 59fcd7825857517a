"""Files are copied into tensors in pieces by several threads, whole or with an error."""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.errors import ConfigError
from tests.fakes.tiny_drafters import (
    EAGLE3,
    drafted_ids,
    eagle3_shapes,
    random_drafter,
    write_drafter,
)
from tests.fakes.tiny_models import write_tiny_model
from workers.engine.load.checkpoint import Checkpoint
from workers.engine.load.file_stream import FileStream
from workers.engine.models.model_config import read_model_config
from workers.engine.models.weight_reader import load_weights

CPU = torch.device("cpu")


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[int]:
    """A file of 1000 float32 numbers after 12 bytes of something else."""
    path = tmp_path / "numbers"
    path.write_bytes(bytes(12) + torch.arange(1000.0).numpy().tobytes())
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("piece_bytes", [4, 60, 4000, 2**20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_element_arrives(numbers: int, piece_bytes: int, dtype: torch.dtype) -> None:
    """Every element arrives with any pieces, in place and converted; progress ends at all bytes."""
    stream = FileStream(CPU, num_threads=3, piece_bytes=piece_bytes)
    out = torch.full((3, 10, 50), float("nan"), dtype=dtype)
    told: list[int] = []
    stream.put(numbers, 12, torch.float32, out[:2])
    stream.settle(lambda: told.append(stream.done_bytes))
    stream.close()
    assert torch.equal(out[:2].flatten(), torch.arange(1000.0).to(dtype))
    assert out[2].isnan().all()
    assert told[-1] == 4000
    assert told == sorted(told)


def test_tensors_of_inference_are_filled(numbers: int) -> None:
    """Tensors of inference are filled, as weights that are read again at a wake: the mode is a
    thread's own, and these threads are not the caller's.
    """
    with torch.inference_mode():
        stream = FileStream(CPU, num_threads=2, piece_bytes=400)
        out = torch.empty(1000)
        stream.put(numbers, 12, torch.float32, out)
        stream.settle(lambda: None)
        stream.close()
    assert torch.equal(out, torch.arange(1000.0))


def test_what_has_settled_is_there_and_more_may_follow(numbers: int) -> None:
    """A layer is used before the next one is read."""
    stream = FileStream(CPU, num_threads=2, piece_bytes=400)
    for start in (0, 500):
        out = torch.empty(500)
        stream.put(numbers, 12 + 4 * start, torch.float32, out)
        stream.settle(lambda: None)
        assert torch.equal(out, torch.arange(start, start + 500.0))
    assert stream.done_bytes == 4000
    stream.close()


def test_a_file_that_ends_early_is_an_error(numbers: int) -> None:
    """A file that ends early is an error that says how much is missing."""
    stream = FileStream(CPU, num_threads=2, piece_bytes=1024)
    stream.put(numbers, 2012, torch.float32, torch.empty(1000))
    with pytest.raises(OSError, match="bytes early"):
        stream.settle(lambda: None)
    stream.close()


@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_streams_what_it_reads(tmp_path: Path, shards: int) -> None:
    """A checkpoint gives the same tensors streamed and read, in any dtype, from one file or
    several.
    """
    model_dir = write_tiny_model(tmp_path, shards=shards, dtype="bfloat16")
    stream = FileStream(CPU, piece_bytes=100)
    with Checkpoint(model_dir) as plain, Checkpoint(model_dir, stream) as streamed:
        outs = {}
        for name in plain.names:
            shape = tuple(plain._files[plain._where[name]].get_slice(name).get_shape())
            outs[name] = torch.empty(shape)
            streamed.read_into(name, outs[name])
        streamed.settle(lambda: None)
        assert streamed.done_bytes == sum(out.numel() * 2 for out in outs.values())
        assert streamed.done_bytes < streamed.num_bytes < streamed.done_bytes + 20_000
        for name, out in outs.items():
            assert torch.equal(out, plain.read(name, tuple(out.shape)).float())


def test_a_wrong_shape_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    """A wrong shape is refused before anything is read, as without a stream: one line with the file
    and the tensor.
    """
    with (
        Checkpoint(write_tiny_model(tmp_path), FileStream(CPU)) as checkpoint,
        pytest.raises(ConfigError, match=r"model\.safetensors: model\.norm\.weight has shape"),
    ):
        checkpoint.read_into("model.norm.weight", torch.empty(3))


def test_truth_values_are_read(tmp_path: Path) -> None:
    """Published EAGLE-3 heads hold some, as `t2d`."""
    tensors = random_drafter(eagle3_shapes(EAGLE3)) | drafted_ids(EAGLE3)
    assert tensors["t2d"].dtype == torch.bool
    path = write_drafter(tmp_path / "drafter", EAGLE3, tensors)
    with Checkpoint(path, FileStream(CPU)) as checkpoint:
        outs = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        for name, out in outs.items():
            checkpoint.read_into(name, out)
        checkpoint.settle(lambda: None)
    for name, out in outs.items():
        assert torch.equal(out, tensors[name])


class SlowCard:
    """A card whose main stream computes nothing until a caller waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main = object()
        self._launched: list[Callable[[], object]] = []
        empty = torch.empty

        def unpinned(*sizes: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            del pin_memory
            return empty(*sizes, **options)

        monkeypatch.setattr(torch, "empty", unpinned)
        monkeypatch.setattr(torch.cuda, "Event", lambda: CardEvent(self))
        monkeypatch.setattr(torch.cuda, "Stream", lambda _: object())
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: self.main)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _: self.compute())

    def launch(self, work: Callable[[], object]) -> None:
        self._launched.append(work)

    def compute(self) -> None:
        while self._launched:
            self._launched.pop(0)()


class CardEvent:
    """An event of the main stream, or of another stream, which is always done."""

    def __init__(self, card: SlowCard) -> None:
        self._card = card
        self._is_main = False

    def record(self, stream: object) -> None:
        self._is_main = stream is self._card.main

    def wait(self) -> None:
        if self._is_main:
            self._card.compute()

    synchronize = wait


def test_a_tensor_is_filled_behind_what_still_uses_its_memory(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor is filled behind what still uses its memory, as the kernels that quantise the layer
    before, whose memory it has.
    """
    card, seen = SlowCard(monkeypatch), []
    stream = FileStream(torch.device("cuda", 0), num_threads=1, piece_bytes=1000)
    out = torch.full((1000,), 3.0)
    card.launch(lambda: seen.append(out.clone()))
    card.launch(lambda: out.fill_(5.0))
    stream.put(numbers, 12, torch.float32, out)
    stream.settle(lambda: None)
    stream.close()
    assert bool((seen[0] == 3.0).all())
    assert torch.equal(out, torch.arange(1000.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_card_fills_a_tensor_behind_its_kernels(numbers: int) -> None:
    """A tenth of a second late here."""
    device = torch.device("cuda", torch.cuda.current_device())
    out = torch.full((1000,), 3.0, device=device)
    torch.cuda.synchronize()
    torch.cuda._sleep(150_000_000)
    seen = out.clone()
    out.fill_(5.0)
    stream = FileStream(device)
    stream.put(numbers, 12, torch.float32, out)
    stream.settle(lambda: None)
    stream.close()
    assert bool((seen == 3.0).all())
    assert torch.equal(out.cpu(), torch.arange(1000.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_card_gets_what_a_cpu_gets(tmp_path: Path, dtype: str) -> None:
    """All weights, merged and converted, through pinned buffers in many small pieces."""
    model_dir = write_tiny_model(tmp_path, shards=2, dtype="bfloat16", attention_bias=True)
    config = read_model_config(model_dir)
    on_card, on_cpu = (
        load_weights(model_dir, config, torch.device(device), getattr(torch, dtype), _ignore)
        for device in ("cuda:0", "cpu")
    )
    assert on_card.num_bytes() == on_cpu.num_bytes()
    for card, host in zip(on_card._tensors(), on_cpu._tensors(), strict=True):
        assert torch.equal(card.cpu(), host)


def _ignore(_phase: str, _fraction: float, _detail: str) -> None:
    """A report that is not read."""
