"""What a product does beside multiplying: one type for all kernels of `kernels.linear`.

Owns the parts, and their names among a kernel's constants. Must not know kernels.
"""

import struct
from typing import Final, NamedTuple

import torch
from torch import Tensor


class EpilogueForm(NamedTuple):
    """Which parts an `Epilogue` has: what a kernel is compiled for."""

    has_norm: bool = False
    has_bias: bool = False
    has_residual: bool = False
    swiglu: bool = False
    is_gelu: bool = False

    def constants(self) -> dict[str, bool]:
        """The constants by the names that they have in all kernels."""
        return {
            "NORM": self.has_norm,
            "BIAS": self.has_bias,
            "RESIDUAL": self.has_residual,
            "SWIGLU": self.swiglu,
            "GELU": self.is_gelu,
        }

    def macros(self) -> dict[str, int]:
        """The form as macros of a kernel in CUDA C++."""
        return {name: int(value) for name, value in self.constants().items()}

    def num_out(self, num_weight_rows: int) -> int:
        """The columns of the result if the weight has `num_weight_rows` rows."""
        return num_weight_rows // 2 if self.swiglu else num_weight_rows


class Epilogue(NamedTuple):
    """`residual + (rms_norm(x, norm, eps) W^T + bias)`: x [T, K], W [N, K] -> [T, N].

    - `norm` [K], in x's dtype or float32. It stands ahead of the product, but some kernels multiply
      its scale, one number for each row of x, with the finished sums.
    - `bias` [N] and `residual` [T, N], in x's dtype.
    - With `swiglu` W is N / 2 rows of gates, then as many of ups, and the result [T, N / 2] is
      `silu(gate) * up`; with `is_gelu` the tanh form of gelu in place of silu. It excludes bias and
      residual.
    """

    norm: Tensor | None = None
    eps: float = 0.0
    bias: Tensor | None = None
    residual: Tensor | None = None
    swiglu: bool = False
    is_gelu: bool = False

    @property
    def form(self) -> EpilogueForm:
        """Which parts there are."""
        return EpilogueForm(
            self.norm is not None,
            self.bias is not None,
            self.residual is not None,
            self.swiglu,
            self.is_gelu,
        )

    @property
    def eps_bits(self) -> int:
        """`eps` as float32, in the bits of an integer."""
        return int(struct.unpack("i", struct.pack("f", self.eps))[0])

    def to(self, device: torch.device) -> "Epilogue":
        """This epilogue with its tensors on another device."""
        given = self.norm, self.bias, self.residual
        norm, bias, residual = (None if part is None else part.to(device) for part in given)
        return self._replace(norm=norm, bias=bias, residual=residual)

    def behind_norm(self) -> "Epilogue":
        """This epilogue for rows that are normed already."""
        return self._replace(norm=None, eps=0.0)


NOTHING: Final = Epilogue()
"""The bare product."""
