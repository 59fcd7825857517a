"""What an engine died of, in a word and a line."""

import signal
import string
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import FaultKind
from workers.supervisor.diagnosis import (
    DeathEvidence,
    Diagnosis,
    clean_line,
    diagnose,
    fault_cause,
    last_log,
    shell_code,
)


@pytest.mark.parametrize(
    ("returncode", "code", "kind", "says"),
    [
        (127, 127, "file_not_found", "file not found"),
        (126, 126, "not_executable", "not executable"),
        (1, 1, "error", "ended with an error"),
        (0, 0, "left", "without being asked"),
        (-signal.SIGKILL, 137, "killed", "SIGKILL"),
        (-signal.SIGSEGV, 139, "crash", "SIGSEGV"),
        (-signal.SIGILL, 132, "crash", "instruction"),
        (-signal.SIGHUP, 129, "killed", "SIGHUP"),
        (77, 77, "unknown", "exit code 77"),
        (255, 255, "unknown", "exit code 255"),
    ],
)
def test_exit_codes_are_named(returncode: int, code: int, kind: str, says: str) -> None:
    """Every code has a line with its number; the common ones say what happened."""
    assert shell_code(returncode) == code
    found = diagnose(DeathEvidence(exit_code=code))
    assert found.kind == kind
    assert says in found.cause
    assert str(code) in found.cause


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "gpu_memory"),
        ("torch.AcceleratorError: CUDA error: out of memory", "gpu_memory"),
        ("RuntimeError: Triton Error [CUDA]: out of memory", "gpu_memory"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`", "gpu_memory"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED", "gpu_error"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu_error"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "gpu_error"),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver"),
        ("CUDA driver version is insufficient for CUDA runtime version", "driver"),
        ("OSError: libcuda.so.1: cannot open shared object file", "driver"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        ("OSError: [Errno 98] Address already in use", "port_taken"),
        ("MemoryError", "memory"),
        ("ModuleNotFoundError: No module named 'triton'", "file_not_found"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/m/x'", "file_not_found"),
        ("PermissionError: [Errno 13] Permission denied: '/m/x'", "not_executable"),
        # Other people's engines, as they write it.
        (
            "[HAMI-core Warn]: invalid device memory limit CUDA_DEVICE_MEMORY_LIMIT_0=0m",
            "configuration",
        ),
        ("[HAMI-core ERROR]: Illegal device id: -644371744", "driver"),
        ("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use", "configuration"),
        ("vllm: error: unrecognized arguments: --enable-expert-paralel", "configuration"),
        (
            "vllm: error: argument --speculative-config/-sc: Value {method: mtp} cannot be",
            "configuration",
        ),
        (
            "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes",
            "configuration",
        ),
        ('error while handling argument "-c": stoi', "configuration"),
        (
            "gguf_init_from_file: invalid magic characters: '@\\x02', expected 'GGUF'",
            "configuration",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error",
            "ranks",
        ),
        ("torch.distributed.DistNetworkError: The client socket has failed to connect", "ranks"),
        ("RuntimeError: Gloo connectFullMesh failed with ... [no interface]", "ranks"),
        ("ValueError: No available memory for the cache blocks. Try increasing", "gpu_memory"),
        (
            "ValueError: Free memory on device is less than desired GPU memory utilization",
            "gpu_memory",
        ),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static",
            "gpu_memory",
        ),
        (
            "alloc_buffer: allocating 9 MiB on device 0: cudaMalloc failed: out of memory",
            "gpu_memory",
        ),
        ("start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8081", "port_taken"),
    ],
)
def test_the_last_lines_explain_an_exit(line: str, kind: str) -> None:
    """The last telling line wins over the code, and is quoted."""
    found = diagnose(
        DeathEvidence(exit_code=1, last_lines=("No space left on device", line, "goodbye"))
    )
    assert found.kind == kind
    assert line in found.cause
    assert found.remedy


def test_the_cause_is_found_above_long_tracebacks() -> None:
    """vLLM writes it in a child process first, then again as two tracebacks without it."""
    lines = ("ValueError: No available memory for the cache blocks.", *["  File x"] * 120)
    ending = DeathEvidence(
        exit_code=1, last_lines=(*lines, "RuntimeError: Engine core initialization failed.")
    )
    assert diagnose(ending).kind == "gpu_memory"
    assert len(last_log(ending.last_lines)) == 50


def test_old_lines_do_not_explain_a_kill() -> None:
    """Old lines do not explain a kill: a SIGKILL is not due to the failed request of an hour ago;
    the kernel's count decides.
    """
    lines = ("CUDA out of memory",)
    assert diagnose(DeathEvidence(exit_code=137, last_lines=lines)).kind == "killed"
    found = diagnose(DeathEvidence(exit_code=137, last_lines=lines, oom_kills=1))
    assert found.kind == "memory"
    assert "killed by the kernel" in found.cause


@pytest.mark.parametrize(
    ("told", "phase", "is_config", "kind", "is_permanent"),
    [
        ("model 'x' is neither a directory nor a hub id", "import", True, "configuration", True),
        ("config.json does not exist", "start", True, "configuration", True),
        ("m is no safetensors file (header too large)", "load", True, "configuration", True),
        ("device = 'cuda', but torch finds 0 CUDA devices", "import", True, "driver", False),
        ("model 'x' cannot be fetched (timeout)", "download", True, "configuration", False),
        ("x does not fit into the memory of cuda:0", "memory", True, "gpu_memory", False),
        ("x does not fit into the memory of cpu", "load", True, "memory", False),
        ("x does not fit into the memory of the host", "load", True, "memory", False),
        ("KeyError: 'x'", "import", False, "error", False),
    ],
)
def test_only_a_mistake_seen_before_loading_is_permanent(
    told: str, phase: str, is_config: bool, kind: str, is_permanent: bool
) -> None:
    """A network, a driver or somebody else's memory may be better the next time."""
    found = diagnose(DeathEvidence(reported=told, phase=phase, is_config=is_config, exit_code=1))
    assert (found.kind, found.is_permanent) == (kind, is_permanent)
    assert found.cause == told


def test_the_oldest_evidence_comes_first() -> None:
    """The oldest evidence comes first: the engine's words, of which none count after a verdict,
    then the reason why it was killed, then its end.
    """
    lived_on = "the engine closed its channel but lived on"
    ending = DeathEvidence(
        killed_for=lived_on, reported="no such model", is_config=True, exit_code=137
    )
    assert diagnose(ending) == Diagnosis("configuration", "no such model", "", is_permanent=True)
    ending = DeathEvidence(killed_for="hung: no step", exit_code=137)
    assert diagnose(ending) == Diagnosis("hung", "hung: no step")
    assert diagnose(DeathEvidence(killed_for="no progress for 9 s at `x`")).kind == "no_progress"
    assert (
        diagnose(DeathEvidence(killed_for="the health probe was rejected: busy")).kind
        == "bad_answer"
    )
    assert diagnose(DeathEvidence(killed_for="/m has no tokenizer.json; x")).kind == "error"
    assert diagnose(DeathEvidence()).kind == "unknown"


def test_a_process_that_could_not_be_made_is_explained() -> None:
    """A process that could not be made is explained with the system's words, and the disk if that
    is full.
    """
    found = diagnose(DeathEvidence(exit_code=127, spawn_error="No such file or directory: '/x'"))
    assert found.kind == "file_not_found"
    assert "'/x'" in found.cause
    found = diagnose(DeathEvidence(exit_code=1, spawn_error="[Errno 28] No space left on device"))
    assert found.kind == "disk_full"


TEXTS = st.none() | st.text(max_size=40)


@given(
    st.builds(
        DeathEvidence,
        killed_for=TEXTS,
        reported=TEXTS,
        is_config=st.booleans(),
        exit_code=st.none() | st.integers(-300, 300),
        spawn_error=st.text(max_size=20),
        last_lines=st.lists(st.text(max_size=40), max_size=3).map(tuple),
        oom_kills=st.integers(0, 2),
    ),
    st.integers(0, 9),
    st.booleans(),
)
def test_any_ending_is_one_printable_line(
    ending: DeathEvidence, failed_starts: int, stops: bool
) -> None:
    """Any ending is one printable line; its kind is of the closed set and fits the message's
    field.
    """
    found = diagnose(ending)
    assert found.kind in get_args(FaultKind)
    cause = fault_cause(found, worker="w", failed_starts=failed_starts, stops=stops)
    assert cause.isprintable()
    assert len(cause) < 1500


def test_the_tries_are_counted_in_the_cause() -> None:
    """The tries are counted in the cause, while there is another one, and at the end with what to
    do.
    """
    found = Diagnosis("file_not_found", "exit code 127: file not found", "put it back")
    assert fault_cause(found, worker="w", failed_starts=2, stops=False) == (
        "exit code 127: file not found; put it back (failed start 2 of 5)"
    )
    later = fault_cause(found, worker="w", failed_starts=1, stops=False, next_s=10.0)
    assert later.endswith("put it back (failed start 1 of 5, the next in 10 s)")
    endless = fault_cause(found, worker="w", failed_starts=7, stops=False, is_endless=True)
    assert endless.endswith("put it back (failed start 7)")
    assert fault_cause(found, worker="w", failed_starts=0, stops=False).endswith("put it back")
    final = fault_cause(found, worker="w", failed_starts=5, stops=True)
    assert "stopped after 5 starts in a row that never got ready" in final
    assert final.endswith("`herma worker restart w`")


def test_log_lines_are_cut_and_cleaned() -> None:
    """A fault carries at most 50 lines of 500 characters; progress bars their last state."""
    lines = last_log(f"{i} " + "x" * 1000 for i in range(80))
    assert len(lines) == 50
    assert {len(line) for line in lines} == {500}
    assert clean_line(b"10%\r50%\r100%\r\n") == "100%"
    assert clean_line(b"\x1b[1;31mERROR\x1b[0m \x1b]0;title\x07\xff") == "ERROR \ufffd"
    assert clean_line("\u202etxt".encode()) == "\\u202etxt"


@given(st.binary(max_size=300) | st.text(string.printable + "\x1b").map(str.encode))
def test_any_line_is_safe_to_show(line: bytes) -> None:
    """No control character is left but the tab."""
    assert clean_line(line).replace("\t", "").isprintable()
