"""Two records in words."""

from typing import Any

import msgspec

from workers.ipc import StartSpeed
from workers.starts import Library, StartRecord, WeightFile, differences

ARGV = ["vllm", "serve", "/m", "--max-model-len", "131072", "--enable-expert-parallel"]
BASE = StartRecord(
    1.0,
    versions={"herma": "1.0", "torch": "2.11"},
    engine_version="0.19.2",
    commit="a" * 40,
    driver="580.126.09",
    kernel="6.8",
    environment={"OMP_NUM_THREADS": "8"},
    arguments=("--name", "w"),
    config={"max_seqs": 8, "launch": {"argv": ARGV, "env": {"NCCL_IB_HCA": "a"}, "cwd": None}},
    model_dir="/m",
    weights={"a.safetensors": WeightFile(100, 5, "h1"), "b.json": WeightFile(1, 1, "x")},
    libraries={"/vgpu.so": Library(676, "ab" * 32)},
    speed=StartSpeed(79.4, 1000.0, 8192),
)


def words(**changed: Any) -> list[str]:
    found = differences(BASE, msgspec.structs.replace(BASE, **changed))
    return [f"{one.boundary}: {one.what}" for one in found]


def launch(argv: list[str], **env: str) -> dict[str, Any]:
    return {"max_seqs": 8, "launch": {"argv": argv, "env": env, "cwd": None}}


def test_equal_records_differ_in_nothing() -> None:
    assert words(at=9.0) == []


def test_each_boundary_reads_as_a_sentence() -> None:
    """Each boundary reads as a sentence, from the host to the speed, in this order."""
    assert words(
        kernel="6.17",
        versions={"herma": "1.0", "triton": "3.6"},
        engine_version="0.20.2",
        environment={"OMP_NUM_THREADS": "1", "VLLM_X": "1"},
        arguments=("--name", "w", "--batch", "4"),
        libraries={"/vgpu.so": Library(863, "cd" * 32)},
        weights={"a.safetensors": WeightFile(100, 5, "h2"), "c.json": WeightFile(1, 1, "x")},
        speed=StartSpeed(71.4, 1000.0, 8192),
    ) == [
        "host: kernel was 6.8, is 6.17",
        "code: torch is gone: it was 2.11",
        "code: triton is new: 3.6",
        "code: engine was 0.19.2, is 0.20.2",
        "environment: OMP_NUM_THREADS was 8, is 1",
        "environment: VLLM_X is new: 1",
        "arguments: --batch is new: 4",
        "libraries: /vgpu.so was 676 bytes, sha256 abababababab, is 863 bytes, sha256 cdcdcdcdcdcd",
        "weights: a.safetensors has another header",
        "weights: b.json is gone",
        "weights: c.json is new",
        "speed: answers at 71.4 tokens/s, 10% slower than the 79.4 of the last good start",
    ]


def test_arguments_of_the_launched_engine() -> None:
    """Arguments of the launched engine are compared by flag, with both values; a flag without a
    value is given or not.
    """
    argv = ["vllm", "serve", "/m", "--max-model-len=200000"]
    assert words(config=launch(argv, NCCL_IB_HCA="b")) == [
        "arguments: --enable-expert-parallel is gone",
        "arguments: --max-model-len was 131072, is 200000",
        "config: launch.env.NCCL_IB_HCA was a, is b",
    ]


def test_what_is_not_known_yet_is_not_compared() -> None:
    """A start that has not become ready."""
    assert words(engine_version="", speed=StartSpeed(), model_dir="", weights={}) == []


def test_files_of_another_size_or_time() -> None:
    assert words(weights={**BASE.weights, "a.safetensors": WeightFile(90, 5, "h1")}) == [
        "weights: a.safetensors had 100 bytes, has 90"
    ]
    (line,) = words(weights={**BASE.weights, "a.safetensors": WeightFile(100, 10**18, "h1")})
    assert line.startswith("weights: a.safetensors was written at 2001-09-09 01:46:40 UTC, before")


def test_a_file_whose_whole_content_is_known_has_no_other_time() -> None:
    """A copy of a model, as another checkout has it, differs in nothing that can be seen; its
    weights, whose content is not read, are one line.
    """
    assert words(weights={**BASE.weights, "b.json": WeightFile(1, 10**18, "x")}) == []
    shards = {f"m-{part}.safetensors": WeightFile(10**9, part, "h") for part in range(30)}
    again = {name: WeightFile(10**9, 10**18, "h") for name in shards}
    before = msgspec.structs.replace(BASE, weights=shards)
    (found,) = differences(before, msgspec.structs.replace(BASE, weights=again))
    assert found.what.startswith("30 files, as m-0.safetensors, were written at 2001-09-09")


def test_another_model_is_one_difference() -> None:
    """Neither its files nor its speed are those of the model before; the command says no more than
    the table.
    """
    config = {**BASE.config, "model": "/other"}
    before = msgspec.structs.replace(BASE, config={**BASE.config, "model": "/m"})
    now = msgspec.structs.replace(
        BASE,
        config=config,
        arguments=("--config", "a.toml", "--beside-gateway", "--model", "/other"),
        model_dir="/other",
        weights={},
        speed=StartSpeed(1.0, 1.0, 8192),
    )
    assert [one.what for one in differences(before, now)] == ["model was /m, is /other"]
