"""An engine whose memory leaves the device and comes back answers as before."""

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from benchmarks.drive import Drive
from config import WorkerConfig
from protocol.sampling import SamplingParams
from tests.fakes.scarce_pages import ScarcePages
from tests.fakes.tiny_drafters import add_gated_head
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from workers.engine.drafting.speculating import kept_speculation
from workers.engine.memory import window_size
from workers.engine.runner import ModelRunner
from workers.engine.sleep import choice, host_store
from workers.engine.sleep.device_sleep import DeviceSleep, NoSleep
from workers.engine.sleep.weight_tensors import tensors_of
from workers.engine.step.host_steps import HostSteps
from workers.loop import MemoryMove
from workers.memory_room import MemoryRoom
from workers.scheduler import SavePolicy

BLOCK = 16
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
FINE = SavePolicy(grain=BLOCK, every=2 * BLOCK, least=BLOCK, along=BLOCK)
ON_CARD = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    ],
)


def _wait_ready(sleep: DeviceSleep) -> None:
    """Wait until the memory of the host that was wanted is ready."""
    for store in (sleep._weights_store, sleep._rows_store):
        if store is not None:
            store.wait()


class Sleeper(NamedTuple):
    """An engine that serves, and can sleep. The last number of `host_room` is what is free."""

    runner: ModelRunner
    drive: Drive
    sleep: DeviceSleep
    host_room: list[int]

    def ask(self, prompt: list[int]) -> tuple[list[int], int]:
        """The answer, and how many of the prompt's tokens were cached."""
        number = self.drive.submit(prompt, GREEDY)
        self.drive.finish()
        answer = self.drive.answers[number]
        return answer.outputs, answer.cached_tokens

    def fall_asleep(self) -> MemoryMove:
        blocks = self.drive.blocks
        self.sleep.expect(blocks.held_counts())
        _wait_ready(self.sleep)
        assert self.sleep.fits(blocks.held_counts())
        return self.sleep.fall_asleep(blocks.held_places())


def sleeper(
    model: Path, patch: pytest.MonkeyPatch, on: str = "cpu", room: int = 2**40, **keys: Any
) -> Sleeper:
    """The engine of `model`; `room` bytes are free on its host."""
    rooms = [room]
    patch.setattr(choice, "host_room", lambda: MemoryRoom(rooms[-1], "the kernel"))
    patch.setattr(host_store, "PIECE_BYTES", 2**20)
    sizes = {"kv_tokens": 2048, "block_size": BLOCK, "token_budget": 64, "context_length": 512}
    runner = load_tiny(
        model, device=on, dtype="float32", residency="on-demand", **{**sizes, **keys}
    )
    sleep = choice.begun_sleep(runner)
    assert isinstance(sleep, DeviceSleep)
    while on == "cuda" and runner.prepare(pending_only=False):  # its graphs name addresses
        pass
    drive = Drive(runner, looks_ahead=runner.lookahead > 0, save_policy=FINE)
    return Sleeper(runner, drive, sleep, rooms)


@pytest.fixture(name="pages", autouse=True)
def _pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ScarcePages:
    """A device that maps memory, unless the test is about a card."""
    pages = ScarcePages()
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(choice, "pages_of", lambda _: pages)
        monkeypatch.setattr(choice, "most_bytes_of", lambda _: pages.total)
    return pages


def _prompts(count: int = 3) -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(2, 140) for _ in range(150)] for _ in range(count)]


@pytest.mark.parametrize("on", ["cpu", ON_CARD])
@pytest.mark.parametrize("family", ["qwen2", "qwen3_5", "gemma4"])
def test_it_answers_as_before_and_finds_its_prefixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: ScarcePages, family: str, on: str
) -> None:
    """An engine that slept answers as before and finds its prefixes: keys and values, states,
    blocks of windows.
    """
    monkeypatch.setattr(window_size, "LEAST_SAVED", 0)
    one = sleeper(write_family(tmp_path, family), monkeypatch, on)
    prompts = _prompts()
    first = [one.ask(prompt)[0] for prompt in prompts]
    hits = [one.ask(prompt)[1] for prompt in prompts]
    assert min(hits) > 100
    for _ in range(3):
        slept = one.fall_asleep()
        assert (slept.why, slept.has_rows) == ("", True)
        assert (pages.taken, slept.host_bytes > 0) == (0, True)
        assert pages.has_stacks == (on == "cuda")  # a card has other pages
        woken = one.sleep.wake()
        assert (woken.why, woken.has_rows, woken.is_asleep) == ("", True, False)
        assert [one.ask(prompt) for prompt in prompts] == [*zip(first, hits, strict=True)]


@pytest.mark.parametrize("on", ["cpu", ON_CARD])
@pytest.mark.parametrize("room", [2**40, 1000])
def test_a_drafter_sleeps_with_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: ScarcePages, room: int, on: str
) -> None:
    """A drafter's weights, keys and values sleep with its target, and its drafts are as good as
    before.
    """
    path = write_family(tmp_path, "qwen3_5")
    add_gated_head(path)
    bare = sleeper(path, monkeypatch, on)
    plain = pages.taken
    one = sleeper(path, monkeypatch, on, room, speculation="auto")
    assert one.runner.drafter is not None
    if on == "cpu":
        assert pages.taken - plain > plain  # its keys and values
        assert all(map(pages.holds, tensors_of(one.runner.drafter)))
    config = WorkerConfig("w", str(path), "m", (), token_budget=64, speculation="auto")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    speculation, _ = kept_speculation(config, one.runner, {"XDG_STATE_HOME": str(tmp_path)})
    looks_ahead = one.runner.lookahead > 0
    drive = Drive(one.runner, looks_ahead=looks_ahead, save_policy=FINE, proposer=speculation)
    drafting = one._replace(drive=drive)
    prompts = _prompts()
    expected = [bare.ask(prompt)[0] for prompt in prompts]
    assert [drafting.ask(prompt)[0] for prompt in prompts] == expected
    if room == 1000:
        drive.clear_card()
        assert one.sleep.fall_asleep(drive.blocks.held_places()).why == ""
    else:
        assert drafting.fall_asleep().why == ""
    assert one.sleep.wake().why == ""
    assert [drafting.ask(prompt)[0] for prompt in prompts] == expected
    assert speculation is not None
    assert sum(speculation.counters.verified) > 0


@pytest.mark.parametrize("on", ["cpu", ON_CARD])
@pytest.mark.parametrize(
    ("family", "form"),
    [("qwen2", "auto"), ("qwen2", "fp8"), ("qwen3_5", "int4"), ("gpt_oss", "auto")],
)
def test_without_room_on_the_host_weights_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: str, family: str, form: str
) -> None:
    """Into the memory that they had, layer by layer."""
    model = write_family(tmp_path, family)
    one = sleeper(model, monkeypatch, on, room=1000, quantization=form)
    (prompt,) = _prompts(1)
    first, _ = one.ask(prompt)
    one.drive.clear_card()
    slept = one.sleep.fall_asleep(one.drive.blocks.held_places())
    assert (slept.why, slept.host_bytes) == ("", 0)
    assert "read again" in slept.note
    assert one.sleep.wake().why == ""
    assert one.ask(prompt) == (first, 0)


@pytest.mark.parametrize("on", ["cpu", ON_CARD])
def test_counts_for_penalties_are_no_memory_of_a_sleeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: ScarcePages, on: str
) -> None:
    """A sequence brings its own. Graphs know where they are."""
    one = sleeper(write_family(tmp_path, "qwen2"), monkeypatch, on)
    sampling = SamplingParams(
        max_tokens=8, temperature=0.0, ignore_eos=True, repetition_penalty=1.5, presence_penalty=1.0
    )

    def answers() -> list[list[int]]:
        numbers = [one.drive.submit(prompt, sampling) for prompt in _prompts()]
        one.drive.finish()
        return [one.drive.answers[number].outputs for number in numbers]

    if on == "cpu":
        assert isinstance(one.runner._steps, HostSteps)
        assert pages.holds(one.runner._steps._sampler._penalties._counts)
    first = answers()
    assert first != [one.ask(prompt)[0] for prompt in _prompts()]
    assert one.fall_asleep().why == ""
    assert one.sleep.wake().why == ""
    assert answers() == first


def test_others_have_the_memory_at_a_wake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: ScarcePages
) -> None:
    """If others have the memory at a wake, the engine sleeps on with nothing taken, whichever part
    is missing, and a later wake restores all.
    """
    one = sleeper(write_family(tmp_path, "qwen2"), monkeypatch)
    (prompt,) = _prompts(1)
    first, _ = one.ask(prompt)
    whole = pages.taken
    assert one.fall_asleep().why == ""
    for lacking in (whole, whole // 2, 1):
        pages.others = pages.total - whole + lacking
        woken = one.sleep.wake()
        assert woken.is_asleep
        assert "others have taken the memory" in woken.why
        assert (pages.taken, pages.has_stacks) == (0, False)
    pages.others = pages.total
    assert one.sleep.wake().is_asleep
    assert (pages.taken, pages.has_stacks) == (0, False)
    pages.others = 0
    assert one.sleep.wake().why == ""
    outputs, hit = one.ask(prompt)
    assert (outputs, hit > 100) == (first, True)


def test_changed_weights_are_no_wake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came back is compared with what left."""
    one = sleeper(write_family(tmp_path, "qwen2"), monkeypatch)
    assert one.fall_asleep().why == ""
    parts = host_store.HostStore.parts
    monkeypatch.setattr(
        host_store.HostStore,
        "parts",
        lambda self, at, size: ((to, part.clone().add_(1)) for to, part in parts(self, at, size)),
    )
    assert one.sleep.wake().why == "its weights are not what they were"


def test_twenty_switches_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: ScarcePages
) -> None:
    """Twenty switches leave no memory of the device or of the host behind."""
    one = sleeper(write_family(tmp_path, "qwen3_5"), monkeypatch)
    prompts = _prompts()
    first = [one.ask(prompt)[0] for prompt in prompts]
    taken = pages.taken
    host = {one.fall_asleep().host_bytes}
    one.sleep.wake()
    for _ in range(20):
        host.add(one.fall_asleep().host_bytes)
        assert one.sleep.wake().why == ""
        assert pages.taken == taken
    assert len(host) == 1
    assert [one.ask(prompt)[0] for prompt in prompts] == first


def test_an_always_resident_engine_takes_its_memory_as_torch_does(tmp_path: Path) -> None:
    runner = load_tiny(write_family(tmp_path, "qwen2"), kv_tokens=256)
    assert isinstance(choice.begun_sleep(runner), NoSleep)
    assert runner.model.place is None


def test_memory_of_the_host_is_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefixes get no more of it than what is free when they come."""
    one = sleeper(write_family(tmp_path, "qwen2"), monkeypatch)
    _wait_ready(one.sleep)
    before = one.sleep.host_bytes
    one.host_room.append(1000)
    one.ask(_prompts(1)[0])
    counts = one.drive.blocks.held_counts()
    one.sleep.expect(counts)
    _wait_ready(one.sleep)
    assert (one.sleep.host_bytes, one.sleep.fits(counts)) == (before, False)
