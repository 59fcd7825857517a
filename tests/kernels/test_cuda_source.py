"""CUDA C++ from source to machine code: the words by which it is known, and what failure says."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from kernels.cuda.source import CompileError, CudaSource, compiler_version
from kernels.recorder import compile_recorded, record_launches

HAS_COMPILER = find_spec("cuda") is not None
needs_compiler = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_COMPILER, reason="needs torch for CUDA"),
]


def _source(path: Path, text: str = "") -> CudaSource:
    path.write_text(text, encoding="utf-8")
    return CudaSource("somewhere", "nothing", path, lambda macros: {"x.h": f"// {macros['A']}"})


def test_a_compilation_is_known_by_its_constants(tmp_path: Path) -> None:
    """A compilation is known by its constants in any order; other constants are another
    compilation.
    """
    source = _source(tmp_path / "nothing.cu")
    with record_launches() as recorded:
        source.record({"A": 1, "B": 2})
        source.record({"B": 2, "A": 1})
        source.record({"A": 1, "B": 3})
    assert [kernel.name for kernel in recorded.values()] == ["nothing", "nothing"]
    assert {kernel.module for kernel in recorded.values()} == {"somewhere"}


@pytest.mark.skipif(HAS_COMPILER, reason="torch for CUDA is here")
def test_without_a_compiler_it_says_what_is_missing(tmp_path: Path) -> None:
    """Without a compiler the error says what is missing; a caller that asks first can do without
    one.
    """
    with pytest.raises(CompileError, match="No module named 'cuda'"):
        compiler_version()
    with pytest.raises(CompileError, match="No module named 'cuda'"):
        _source(tmp_path / "nothing.cu").cubin({"A": 1})
    with pytest.raises(CompileError, match="cuda"), record_launches():
        _source(tmp_path / "nothing.cu").preload('{"A":1}')


class TestCompiler:
    """Where there is one."""

    pytestmark = needs_compiler

    def test_a_mistake_is_told_in_its_words(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A mistake is told in the compiler's words, with the file, the line and the macros."""
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
        source = _source(tmp_path / "wrong.cu", "\nint x = ;")
        with pytest.raises(CompileError, match=r"(?s)wrong\.cu .*-DA=1.*wrong\.cu\(2\): error"):
            source.cubin({"A": 1})

    def test_it_is_compiled_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A source is compiled once, until its text, its constants or what it includes are
        others.
        """
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
        text = 'extern "C" __global__ void nothing(int* x) { *x = A; }'
        source = _source(tmp_path / "right.cu", text)
        with record_launches() as recorded:
            first = source.cubin({"A": 1})
        assert first[:4] == b"\x7fELF"
        assert source.cubin({"A": 1}) == first
        assert len(list((tmp_path / "cache").rglob("*.cubin"))) == 1
        assert source.cubin({"A": 2}) != first
        assert len(list((tmp_path / "cache").rglob("*.cubin"))) == 2
        (kernel,) = recorded.values()
        with pytest.raises(ModuleNotFoundError):  # this one stands in no module
            compile_recorded(kernel, with_launcher=False)
