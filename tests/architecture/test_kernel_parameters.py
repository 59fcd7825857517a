"""Each parameter of a kernel that is launched says its shape and unit on a line of its own."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"

UNREAD = ("experts", "latent")
"""Folders whose kernels still have parameters without a word."""


def test_each_parameter_of_a_kernel_has_a_comment() -> None:
    """Triton's kernels are named so: what ends in `_kernel`."""
    found, num_kernels = [], 0
    for path in sorted(KERNELS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.parent.name in UNREAD or "triton.jit" not in text:
            continue
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef) or not node.name.endswith("_kernel"):
                continue
            num_kernels += 1
            found += [
                f"{path.relative_to(ROOT)}:{argument.lineno} {argument.arg}"
                for argument in node.args.args
                if "  # " not in lines[argument.lineno - 1]
            ]
    assert num_kernels > 30
    assert found == []
