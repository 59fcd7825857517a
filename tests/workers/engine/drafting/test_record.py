"""What drafts brought outlives the engine; a file that is damaged costs a warning, nothing else."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.drive import Drive
from config import SpeculationConfig, WorkerConfig
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.invariant_cases import Asked, serve
from workers.engine.drafting.description import promised_length
from workers.engine.drafting.record import (
    FORMAT,
    KEEP_EVERY_S,
    DraftRecord,
    FitOrigin,
    load_fit,
    record_path,
)
from workers.engine.drafting.speculating import kept_speculation, speculation_for
from workers.engine.runner import ModelRunner
from workers.speculation import (
    CardSource,
    DraftDepth,
    DraftTimes,
    Fit,
    PlaceOdds,
    Rate,
    Speculation,
    SpeculationPolicy,
)

ORIGIN = FitOrigin("/models/tiny", "suffix", "cpu auto torch.float32")
CONFIG = WorkerConfig("w", "tiny", "tiny", (), token_budget=256, speculation="auto")
SOME = Fit(
    ahead_sizes=(1, 2),
    sizes=(1, 2, 4),
    ahead={0: 0.01},
    awaiting={1: 0.02, 2: 0.03},
    drafting={3: {0: 0.004}},
    places=(Rate(3.0, 4.0),),
)


@pytest.fixture(scope="module", name="runner")
def _runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    model_dir = write_tiny_model(tmp_path_factory.mktemp("model"))
    return load_tiny(model_dir, block_size=16, kv_tokens=2048, max_seqs=4, speculation="auto")


def _learned(environ: dict[str, str], said: list[str]) -> DraftRecord:
    return DraftRecord(ORIGIN, environ, clock=lambda: 0.0, say=said.append)


def _written(environ: dict[str, str], fit: Fit = SOME) -> Path:
    record = _learned(environ, [])
    record.follow(_of(fit))
    record.keep()
    return record_path(ORIGIN, environ)


def _of(fit: Fit, warning: Callable[[], str] = str) -> Speculation:
    """Has learned `fit`."""
    return SimpleNamespace(fit=lambda: fit, warning=warning)  # type: ignore[return-value]


def test_a_second_engine_goes_on_where_the_first_ended(runner: ModelRunner, tmp_path: Path) -> None:
    """A second engine goes on with the measured steps and verified drafts of the first, for a model
    that repeats itself.
    """
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    first, record = kept_speculation(CONFIG, runner, environ)
    assert first is not None
    assert record is not None
    greedy = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    serve(Drive(runner, proposer=first), [Asked([5, 9, 2] * 7, greedy, 0)])
    record.keep()
    second, _ = kept_speculation(CONFIG, runner, environ)
    assert second is not None
    assert second.fit() == first.fit()
    assert first.fit().awaiting
    assert second.fit() != Fit()
    other = msgspec.structs.replace(CONFIG, speculation=SpeculationConfig("ngram"))
    fresh, _ = kept_speculation(other, runner, environ)
    assert fresh is not None
    assert not fresh.fit().awaiting


def test_a_network_goes_on_too() -> None:
    """The measured draft passes and acceptance rates of a network outlive the engine too."""
    odds = PlaceOdds(4)
    policy = SpeculationPolicy(looks_ahead=True)
    depth = DraftDepth(odds, policy, 4)
    depth.times.add(2, 4, 0.5)
    odds.learn(1, 4, 2)
    fit = Speculation(CardSource("network", odds), policy, draft_depth=depth).fit()
    assert DraftTimes(fit.drafting).seconds(2, 4) == 0.5
    assert PlaceOdds(4, list(fit.places)).chances(None, 4) == odds.chances(None, 4)
    assert msgspec.json.decode(msgspec.json.encode(fit), type=Fit) == fit


def test_times_of_other_graphs_are_left_aside(runner: ModelRunner) -> None:
    """Times of other graphs are ignored, because their places stand for other numbers of rows."""
    speculation = speculation_for(CONFIG, runner, SOME)
    assert speculation is not None
    assert not speculation.fit().awaiting


DAMAGED = (b"", b"{}", b"\xff\xfe", b'{"format": 1}', b'{"format": 1, "fit": {"ahead": {"0": -1}}}')


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_is_one_warning_and_a_fresh_fit(content: bytes, tmp_path: Path) -> None:
    """A damaged file is one warning; a new one with what is learned then replaces it."""
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    path = _written(environ)
    path.write_bytes(content)
    said: list[str] = []
    record = _learned(environ, said)
    assert record.load() is None
    assert len(said) == 1
    assert str(path) in said[0]
    assert "\n" not in said[0]
    assert said[0].endswith("learning anew")
    record.follow(_of(SOME))
    record.keep()
    assert load_fit(path) == SOME


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans())
def test_whatever_a_file_holds_it_is_a_fit_or_an_error(
    at: int, byte: int, cut: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A byte is another one, or the rest is missing."""
    path = _written({"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))})
    content = bytearray(path.read_bytes())
    at %= len(content)
    content[at:] = b"" if cut else bytes([byte]) + content[at + 1 :]
    path.write_bytes(content)
    try:
        assert isinstance(load_fit(path), Fit)
    except ConfigError as error:
        assert "\n" not in str(error)


def test_a_file_of_a_later_version_is_named(tmp_path: Path) -> None:
    """A file of a later version is named as such, and not as damaged."""
    path = _written({"XDG_STATE_HOME": str(tmp_path)})
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":2', 1))
    with pytest.raises(ConfigError, match=f"is in format 2 .*, not {FORMAT}"):
        load_fit(path)


def test_a_place_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    """A place that cannot be written is reported once; nothing is lost but the file."""
    (tmp_path / "herma").write_text("no folder")
    said: list[str] = []
    record = _learned({"XDG_STATE_HOME": str(tmp_path)}, said)
    record.follow(_of(SOME))
    for _ in range(3):
        record.keep()
    homeless = _learned({}, said)
    assert homeless.load() is None
    homeless.follow(_of(SOME))
    homeless.keep()
    assert len(said) == 2


def test_an_idle_engine_keeps_what_it_learned_now_and_then(tmp_path: Path) -> None:
    """An idle engine keeps what it learned now and then, not beside work, and at most once a
    minute.
    """
    now, said = 0.0, list[str]()
    record = DraftRecord(ORIGIN, {"XDG_STATE_HOME": str(tmp_path)}, lambda: now, said.append)
    path = record_path(ORIGIN, {"XDG_STATE_HOME": str(tmp_path)})
    record.follow(_of(SOME))
    assert record.report(False) == ""
    now = KEEP_EVERY_S + 1
    record.report(True)
    assert not path.exists()
    record.report(False)
    assert load_fit(path) == SOME


def test_a_drafter_far_under_its_card_is_warned_of(tmp_path: Path) -> None:
    """Under half of the accepted drafts that it promises; said once in the log."""
    said: list[str] = []
    for right, warns in ((0, True), (1, True), (3, False)):
        odds = PlaceOdds(7)
        policy = SpeculationPolicy(looks_ahead=False)
        speculation = Speculation(CardSource("network", odds), policy, promised=5.0)
        assert speculation.warning() == ""
        for _ in range(600):
            odds.learn(1, 7, right)
            speculation.counters.add(7, right + 1)
        assert bool(speculation.warning()) == warns
        if right == 1:
            record = _learned({"XDG_STATE_HOME": str(tmp_path)}, said)
            record.follow(speculation)
            assert record.report(True) == record.report(True) == speculation.warning()
    assert len(said) == 1
    assert "2.01 tokens a pass are expected" in said[0]
    assert "promises 5.00" in said[0]


def test_the_promise_of_a_drafter_that_was_trained_here(tmp_path: Path) -> None:
    """The promise of a drafter that was trained here is what its config.json says it reached."""
    for text, length in (
        ('{"herma": {"acceptance": [0.8], "length": 2.5}}', 2.5),
        ('{"herma": {"length": "2"}}', None),
        ('{"herma": 3}', None),
        ("{}", None),
    ):
        (tmp_path / "config.json").write_text(text)
        assert promised_length(tmp_path) == length
