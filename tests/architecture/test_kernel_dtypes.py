"""What a kernel must not write for Triton 3.6: a dtype within a tuple loses its type there.

`head, dtype = tl.program_id(1), out_ptr.dtype.element_ty` compiles with 3.7 and in the interpreter,
and is an error of 3.6 on a card ("'dtype' object has no attribute 'type'").
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def dtypes_in_tuples(source: str) -> list[int]:
    """The lines that assign a tuple with a dtype in it."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and any(
            isinstance(value, ast.Attribute) and value.attr in {"dtype", "element_ty"}
            for value in node.value.elts
        )
    ]


def test_no_kernel_keeps_a_dtype_in_a_tuple() -> None:
    """No kernel, and no other part of a kernel's file, keeps a dtype in a tuple."""
    assert dtypes_in_tuples("a, b = 1, out.dtype.element_ty\nc = x.dtype\n") == [1]
    paths = [
        path
        for path in sorted((ROOT / "kernels").rglob("*.py"))
        if "@triton.jit" in path.read_text(encoding="utf-8")
    ]
    assert len(paths) > 20
    found = {
        str(path.relative_to(ROOT)): dtypes_in_tuples(path.read_text("utf-8")) for path in paths
    }
    assert {path: lines for path, lines in found.items() if lines} == {}
