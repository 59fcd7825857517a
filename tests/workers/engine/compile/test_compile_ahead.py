"""Kernels compiled ahead: those of the start, all of them, and none of it in the way of a start."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from triton.runtime.cache import triton_key

from config import WorkerConfig
from kernels.recorder import RecordedKernel
from tests.fakes.tiny_models import write_tiny_model
from tests.fakes.uninterpreted import run_uninterpreted
from workers.engine.compile import compile_ahead
from workers.engine.compile.compile_ahead import (
    SWITCH,
    CompileAhead,
    compiler_command,
    start_compiling,
)
from workers.engine.compile.compiler import long_ones_first
from workers.engine.compile.compiler_messages import CompilerMessage, Listed, Ready, encode_line
from workers.engine.compile.kernel_cache import (
    Extent,
    hash_compiler,
    is_complete,
    mark_complete,
)
from workers.engine.start import load_runner

ROOT = Path(__file__).parents[4]
CONFIG = WorkerConfig("check", "builtin:herma-tiny", "check", (), max_seqs=5, token_budget=300)
BOUND_S = 60.0
"""For what would otherwise never end."""

KERNELS = [RecordedKernel("kernels", name, "{}") for name in ("first", "second", "third")]


def _checked(room: Path, *checks: str) -> str:
    """In a process of its own, where Triton compiles; see `start_checks`."""
    return run_uninterpreted("tests.workers.engine.start_checks", *checks, cache=room)


def test_a_start_launches_what_its_dry_run_launched(tmp_path: Path) -> None:
    """A start launches what its dry run launched and nothing else: no kernel of the largest step,
    the warm-up or the first graph is missing.
    """
    _checked(tmp_path, "check_dry_run")


@pytest.mark.slow
def test_starts_of_all_kinds_launch_what_their_dry_runs_launched(tmp_path: Path) -> None:
    """Every run has three of ten kinds."""
    _checked(tmp_path, "check_dry_run_of_others")


def test_the_dry_run_knows_steps_of_all_sizes(tmp_path: Path) -> None:
    """Wide products are compiled for each 16 rows, of which graphs hold some only; segments are one
    kernel in CUDA C++ and a merge of pieces, and a large budget leaves long ones to the library.
    """
    checks = (
        "check_long_segments",
        "check_products_of_all_rows",
        "check_products_by_block",
        "check_segments",
        "check_invariant_products",
        "check_products_in_4_bits",
        "check_products_in_4_bits_elsewhere",
    )
    _checked(tmp_path, *checks)


def test_a_start_beside_its_compiler_compiles_nothing(tmp_path: Path) -> None:
    """A start beside its compiler compiles nothing: every kernel is found in the cache, and then
    the cache is complete.
    """
    num_found, num_compiled = json.loads(_checked(tmp_path, "check_compiled_ahead"))
    assert num_compiled >= num_found


@pytest.mark.parametrize("name", ["kernel.py", "kernel.cu", "shared.h", "tiles.json"])
def test_other_code_is_not_complete(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other code, in whatever language, and what it includes, is not complete: there is something
    to compile again.
    """
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("workers.engine.compile.kernel_cache._PACKAGES", (tmp_path / "ours",))
    path = tmp_path / "ours" / "kind" / name
    path.parent.mkdir(parents=True)
    path.write_text("before")
    mark_complete(CONFIG, 90)
    assert is_complete(CONFIG, 90)
    path.write_text("behind")
    assert not is_complete(CONFIG, 90)


def _ahead(*words: CompilerMessage, then: str = "") -> CompileAhead:
    """With a compiler that says these words, and then runs `then`."""
    said = b"".join(map(encode_line, words))
    code = f"import sys; sys.stdout.buffer.write({said!r}); sys.stdout.flush(); {then}"
    return CompileAhead([sys.executable, "-c", code], CONFIG)


def _listed(*kernels: RecordedKernel) -> Listed:
    return Listed(tuple([kernel.id for kernel in kernels]), 4)


def _ready(kernel: RecordedKernel, **changes: Any) -> Ready:
    return Ready(kernel.id, kernel.name, 1.5, **changes)


def test_what_is_ready_or_not_listed_is_not_waited_for() -> None:
    """Though the compiler goes on with others, until it is told the model's directory."""
    first, second, third = KERNELS
    reads = "sys.stdin.readline(); sys.exit(sys.stdin.readline() != '\"/models/tiny\"\\n')"
    ahead = _ahead(_listed(first, second), _ready(first, found=True), then=reads)
    assert not ahead.wait(first)
    assert not ahead.wait(third)
    assert ahead.num_left == 1
    ahead.model_is_at(Path("/models/tiny"))
    assert not ahead.wait(second)
    assert ahead.num_left == 2
    assert ahead.summary().startswith("ahead by 4 processes 1 found, 0 compiled in 0.0 s, 2 left")
    assert not ahead.errors


def test_a_kernel_is_waited_for_until_it_is_ready() -> None:
    """The message comes while the engine waits: when the compiler has read the directory."""
    first, _, third = KERNELS
    says = f"sys.stdout.buffer.write({encode_line(_ready(first))!r}); sys.stdout.flush()"
    ahead = _ahead(_listed(first), then=f"sys.stdin.readline(); sys.stdin.readline(); {says}")
    ahead.wait(third)
    assert ahead.num_compiled == 0
    ahead.model_is_at(Path("/models/tiny"))
    ahead.wait(first)
    assert (ahead.num_compiled, ahead.compile_s, ahead.num_left) == (1, 1.5, 1)


def test_a_start_whose_kernels_are_cached_waits_for_no_list() -> None:
    """An earlier start ended before the kernels of later graphs were done."""
    first, second, _ = KERNELS
    said = encode_line(_listed(second)) + encode_line(_ready(second))
    then = f"sys.stdin.readline(); sys.stdin.readline(); sys.stdout.buffer.write({said!r})"
    command = [sys.executable, "-c", f"import sys; {then}; sys.stdout.flush()"]
    ahead = CompileAhead(command, CONFIG, has_first=True)
    ahead.wait(first)
    assert ahead.num_compiled == 0
    ahead.model_is_at(Path("/models/tiny"))
    ahead._listener.join()
    ahead.wait(second)
    assert (ahead.num_left, ahead.num_compiled) == (1, 1)


@pytest.mark.parametrize(
    ("words", "then", "match"),
    [
        ((), "sys.exit(3)", "status 3"),
        ((_listed(*KERNELS),), "import os; os.kill(os.getpid(), 9)", "status -9"),
        ((_listed(*KERNELS), _ready(KERNELS[1], error="ptxas died")), "sys.exit(1)", "ptxas died"),
        ((_listed(*KERNELS),), "sys.stdout.write('[\"ready')", "not a word of the compiler"),
        ((), "print('hello', flush=True); sys.stdin.readline()", "not a word of the compiler"),
    ],
)
def test_a_compiler_that_fails_is_told_and_does_no_harm(
    words: tuple[CompilerMessage, ...], then: str, match: str
) -> None:
    """The engine compiles by itself what it then meets."""
    ahead = _ahead(*words, then=then)
    for kernel in KERNELS:
        assert not ahead.wait(kernel)
    ahead._listener.join()
    assert match in ahead.summary()
    ahead.model_is_at(Path("/models/tiny"))


def test_a_compiler_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that says nothing is given up once, and not for every kernel."""
    monkeypatch.setattr(compile_ahead, "_SILENCE_S", 0.01)
    ahead = _ahead(then="sys.stdin.read()")
    for kernel in KERNELS:
        assert not ahead.wait(kernel)
    assert ahead.errors == ["no message for 0 s"]
    ahead.model_is_at(Path("/models/tiny"))
    ahead._listener.join()


def test_an_engine_that_stays_on_the_cpu_stops_its_compiler(tmp_path: Path) -> None:
    """A card that torch cannot use needs no kernels; the engine starts without it."""
    model_dir = write_tiny_model(tmp_path / "model")
    config = WorkerConfig(
        "check", str(model_dir), "check", (), max_seqs=5, token_budget=300, device="cpu"
    )
    ahead = _ahead(then="sys.stdin.read()")
    assert load_runner(config, lambda *_: None, ahead).model_dir == model_dir
    ahead._listener.join()
    assert ahead._process.returncode == -signal.SIGKILL


def test_a_compiler_that_cannot_compile_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model that we cannot run: the engine says so itself, the log has it twice."""
    model_dir = write_tiny_model(tmp_path / "model", hidden_act="gelu")
    config = WorkerConfig("check", str(model_dir), "check", (), max_seqs=5, token_budget=300)
    ahead = CompileAhead(compiler_command(90), config)
    ahead.wait(KERNELS[0])
    ahead._listener.join()
    ahead.model_is_at(model_dir)
    assert "status 1" in ahead.summary()
    assert "hidden_act = 'gelu' is not supported" in capfd.readouterr().err


def test_nothing_is_left_behind_by_an_engine_that_is_killed(tmp_path: Path) -> None:
    """The end of a pipe that the compiler and its forks hold open comes with the last of them."""
    model_dir = write_tiny_model(tmp_path / "model")
    code = f"""
import time
from config import WorkerConfig
from workers.engine.compile.compile_ahead import CompileAhead, compiler_command
from kernels.recorder import RecordedKernel
config = WorkerConfig("check", {str(model_dir)!r}, "check", (), max_seqs=5, token_budget=300)
ahead = CompileAhead(compiler_command(90), config)
ahead.wait(RecordedKernel("", "", ""))  # until all are listed: the forks begin
print("listed", flush=True)
time.sleep(1000)
"""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment, cwd=ROOT,
    ) as engine:  # fmt: skip
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"listed\n"
        engine.send_signal(signal.SIGKILL)
        assert engine.communicate(timeout=BOUND_S) == (b"", b"")


def test_only_a_card_with_something_to_compile_needs_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a card with something to compile starts a compiler, and none starts where it is switched
    off.
    """
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    started: list[object] = []
    monkeypatch.setattr(
        compile_ahead, "CompileAhead", lambda *given, has_first: started.append((*given, has_first))
    )
    start_compiling(CONFIG)
    assert not started  # there is no card
    monkeypatch.setattr(compile_ahead, "compute_capability", lambda _: 90)
    start_compiling(CONFIG)
    assert started.pop() == (compiler_command(90), CONFIG, False)
    mark_complete(CONFIG, 90, Extent.FIRST)
    start_compiling(CONFIG)
    assert started == [(compiler_command(90), CONFIG, True)]
    mark_complete(CONFIG, 90)
    elsewhere = msgspec.structs.replace(CONFIG, name="other", gateways=("tcp://[::1]:9",))
    start_compiling(elsewhere)
    assert len(started) == 1
    monkeypatch.setattr(compile_ahead, "compute_capability", lambda _: 100)
    monkeypatch.setenv(SWITCH, "off")
    start_compiling(CONFIG)
    assert len(started) == 1
    monkeypatch.delenv(SWITCH)
    start_compiling(CONFIG)
    assert len(started) == 2


def test_triton_is_hashed_once() -> None:
    """Triton's sources are hashed once, so that later calls have the answer at once."""
    hash_compiler().join()
    assert triton_key.cache_info().currsize == 1


def test_the_longest_kernels_go_first() -> None:
    """The kernels of many parameters, which take longest, are compiled first; the others keep the
    order in which they are needed.
    """
    kernels = [SimpleNamespace(num_parameters=n, at=i) for i, n in enumerate((3, 30, 9, 29, 30, 4))]
    ordered = cast("list[Any]", long_ones_first(cast("list[RecordedKernel]", kernels), 2))
    assert [kernel.at for kernel in ordered] == [1, 4, 0, 2, 3, 5]
