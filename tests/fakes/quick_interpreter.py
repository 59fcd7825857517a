"""Triton's interpreter without what it does in vain; a kernel computes what it did.

At every operation it makes the types and shapes of blocks anew, of which a kernel has a few, and
compares them element by element; at every call of a device function it looks through
`triton.language` for builtins, though the launch has replaced them; and it checks integers for
overflows whose outcome only a debug build looks at. It reads the source of a kernel at the first
launch, by the line numbers of the import: `keep_sources` has it read what was imported. Must not
know kernels.
"""

import inspect
import linecache
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from triton.language import core
from triton.language.core import is_builtin
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_builtins: dict[Any, list[str]] = {}
_shapes: dict[tuple[int, ...], "_Shape"] = {}
_shapes_by_id: dict[int, "_Shape"] = {}
_constants: dict[tuple[Any, ...], Any] = {}
_splats: dict[tuple[Any, ...], Any] = {}
_np_dtypes: dict[str, Any] = {}
_languages: dict[Any, list[ModuleType]] = {}


class _Shape:
    """What blocks of one shape share: equal shapes are one object."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.numel = core.validate_block_shape(list(sizes)) if sizes else 1
        self.of_type = core.tuple(sizes)
        _shapes_by_id[id(self.of_type)] = self  # which lives as long as this process
        self.of_tensor = core.tuple([core.constexpr(size) for size in sizes])
        self.numel_of_tensor = core.constexpr(self.numel)


_NO_BLOCK = _Shape(())
_broadcast = TritonSemantic.broadcast_impl_value
_check_operands = TritonSemantic.binary_op_type_checking_impl
_scalar_constant = TritonSemantic.scalar_constant
_PLAIN = frozenset({"fp32", "int32", "int64"})
"""Types of which an operation with another block of the same type has it too."""
_np_dtype_of = interpreter._get_np_dtype
_patch_lang = interpreter._patch_lang
_unpatched = {core: core.static_range, interpreter.tl: interpreter.tl.static_range}


def quicken() -> None:
    """From now on, in this process."""
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        sanitize_overflow=False
    )
    interpreter._patch_builtin = _patch_builtin
    interpreter._patch_lang = _patch_once
    interpreter._get_np_dtype = _np_dtype
    core.block_type.__init__ = _init_block_type
    core.block_type.__eq__ = _same_type
    core.block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")
    core.tensor.__init__ = _init_tensor
    TritonSemantic.broadcast_impl_value = _broadcast_unless_equal
    TritonSemantic.binary_op_type_checking_impl = _same_operands
    TritonSemantic.scalar_constant = _same_constant


def keep_sources(*packages: str) -> None:
    """Keep the sources of `packages`: whatever happens to their files from now on, `inspect` finds
    the lines of the modules that are imported: a rebase or an edit beside a long run would have
    kernels begin in mid-code.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(packages) and (path := getattr(module, "__file__", None)):
            lines = Path(path).read_text().splitlines(keepends=True)
            # Lines without a time of their file are not compared with it again.
            linecache.cache[path] = (sum(map(len, lines)), None, lines, path)


def _init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
    if (known := _shapes_by_id.get(id(shape))) is not None and shape:
        self.element_ty, self.known = element_ty, known
        self.shape, self.numel = known.of_type, known.numel
        return
    sizes = tuple([core._unwrap_if_constexpr(size) for size in shape])
    if any(type(size) is not int for size in sizes):
        raise TypeError(f"{shape} is not a shape of integers")
    if not sizes:
        raise TypeError("0d block_type is forbidden")
    if (known := _shapes.get(sizes)) is None:
        known = _shapes[sizes] = _Shape(sizes)
    self.element_ty, self.known = element_ty, known
    self.shape, self.numel = known.of_type, known.numel


def _same_type(self: Any, other: Any) -> bool:
    is_same = isinstance(other, core.block_type) and self.shape is other.shape
    return is_same and bool(self.element_ty == other.element_ty)


def _init_tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002 - the interpreter's name
    known = type.known if type.is_block() else _NO_BLOCK
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = known.of_tensor, known.numel_of_tensor


def _broadcast_unless_equal(self: Any, lhs: Any, rhs: Any) -> Any:
    one, other = lhs.type, rhs.type
    if one.is_block():
        if not other.is_block():
            return lhs, _splat(self, rhs, one)
        if one.shape is other.shape:
            return lhs, rhs
    elif other.is_block():
        return _splat(self, lhs, other), rhs
    return _broadcast(self, lhs, rhs)


def _splat(self: Any, scalar: Any, block: Any) -> Any:
    """A block of the shape of `block`; of a constant the same one each time."""
    if not hasattr(scalar, "constant"):
        of_type = core.block_type(scalar.dtype, block.shape)
        handle = self.builder.create_splat(of_type.to_ir(self.builder), scalar.handle)
        return self.tensor(handle, of_type)
    key = (*scalar.constant, block.known)
    if key not in _splats:
        of_type = core.block_type(scalar.dtype, block.shape)
        handle = self.builder.create_splat(of_type.to_ir(self.builder), scalar.handle)
        handle.data.flags.writeable = False
        _splats[key] = self.tensor(handle, of_type)
    return _splats[key]


def _same_constant(self: Any, value: Any, dtype: Any) -> Any:
    """As the original; the same tensor for the same number. Zeros of floats have signs."""
    if not value or value != value:  # noqa: PLR0124 - NaN
        return _scalar_constant(self, value, dtype)
    key = value, type(value), dtype.name
    if key not in _constants:
        made = _scalar_constant(self, value, dtype)
        made.constant = key
        _constants[key] = made
    return _constants[key]


def _same_operands(self: Any, lhs: Any, rhs: Any, *allowed: Any, **checks: Any) -> Any:
    """As the original, which compares types in 20 calls; most operands have the same."""
    if type(lhs) is core.tensor and type(rhs) is core.tensor:
        name = lhs.dtype.name
        if name in _PLAIN and name == rhs.dtype.name:
            return _broadcast_unless_equal(self, lhs, rhs)
    return _check_operands(self, lhs, rhs, *allowed, **checks)


def _np_dtype(tt_dtype: Any) -> Any:
    name = tt_dtype.scalar.name
    if name not in _np_dtypes:
        _np_dtypes[name] = _np_dtype_of(tt_dtype)
    return _np_dtypes[name]


def _patch_once(fn: Any) -> Any:
    """As the interpreter's own, unless the launch has replaced all that `fn` uses."""
    if fn not in _languages:
        named = [value for value in fn.__globals__.values() if inspect.ismodule(value)]
        _languages[fn] = [module for module in named if module in _unpatched]
    used = _languages[fn]
    if used and all(module.static_range is not _unpatched[module] for module in used):
        return interpreter._LangPatchScope()
    return _patch_lang(fn)


def _patch_builtin(owner: Any, builder: Any, scope: Any) -> None:
    """As the interpreter's own: the builtins of `owner` are replaced together, and put back
    together when the scope ends. The first one tells whether there is anything to do.
    """
    if owner not in _builtins:
        found = inspect.getmembers(owner, is_builtin)
        _builtins[owner] = [name for name, _ in found]
    names = _builtins[owner]
    if names and is_builtin(getattr(owner, names[0])):
        for name in names:
            interpreter._patch_attr(owner, name, getattr(owner, name), builder, scope)
