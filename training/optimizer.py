"""The optimizers: Muon for the matrices, AdamW for embedding and norms.

Owns the two and their settings. Muon (Jordan and others, 2024) orthogonalises a matrix's momentum
by a Newton-Schulz iteration before it is applied, so that all directions of a matrix learn at one
rate. Must not know the model.
"""

from collections import defaultdict
from typing import Final

import torch
from torch import Tensor, nn

_ITERATION: Final = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS: Final = 5
_MOMENTUM: Final = 0.95
_EARLY_MOMENTUM: Final = 0.85
_EARLY_STEPS: Final = 300


class Optimizer:
    """Both optimizers over the parameters of one network."""

    def __init__(
        self, network: nn.Module, *, muon_lr: float, adam_lr: float, weight_decay: float
    ) -> None:
        self._muon_lr = muon_lr
        self._adam_lr = adam_lr
        self._weight_decay = weight_decay
        self._num_steps = 0
        named = dict(network.named_parameters())
        self._groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
        others: list[Tensor] = []
        for name, parameter in named.items():
            if parameter.ndim == 2 and "embed" not in name:
                self._groups[parameter.shape].append(parameter)
            else:
                others.append(parameter)
        self._momenta = {
            shape: torch.zeros(len(group), *shape, device=group[0].device)
            for shape, group in self._groups.items()
        }
        self._others = others
        is_cuda = others[0].is_cuda
        self._adam = torch.optim.AdamW(
            others, lr=adam_lr, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=is_cuda
        )

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One step at `factor` of the learning rates; clears the gradients. Never waits."""
        early = min(1.0, self._num_steps / _EARLY_STEPS)
        momentum = _EARLY_MOMENTUM + (_MOMENTUM - _EARLY_MOMENTUM) * early
        torch.nn.utils.clip_grad_norm_(self._others, 1.0)
        for group in self._adam.param_groups:
            group["lr"] = self._adam_lr * factor
        self._adam.step()
        for shape, parameters in self._groups.items():
            self._step_matrices(shape, parameters, self._muon_lr * factor, momentum)
        self._num_steps += 1
        for parameter in (*self._others, *(p for g in self._groups.values() for p in g)):
            parameter.grad = None

    def _step_matrices(
        self, shape: torch.Size, parameters: list[Tensor], rate: float, momentum: float
    ) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        assert len(gradients) == len(parameters)
        gradient = torch.stack(gradients)
        average = self._momenta[shape]
        average.lerp_(gradient, 1.0 - momentum)
        change = orthogonal(gradient.lerp(average, momentum))
        scale = max(1.0, shape[0] / shape[1]) ** 0.5
        torch._foreach_mul_(parameters, 1.0 - rate * self._weight_decay)
        changes = list(change.to(parameters[0].dtype).unbind())
        torch._foreach_add_(parameters, changes, alpha=-rate * scale)


def orthogonal(matrices: Tensor) -> Tensor:
    """Approximately the nearest orthogonal matrices to `matrices` [N, rows, columns].

    Singular values end between about 0.7 and 1.2, which is close enough, and fast in 16 bits.
    """
    a, b, c = _ITERATION
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_NUM_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    out: Tensor = x.mT if is_tall else x
    return out
