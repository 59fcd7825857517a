"""The training loop: trains a network on batches within a given time.

Owns the order of a step, the clock and the progress lines. The learning rate follows the share of
elapsed time, so a run always anneals to its end. The host stays a few steps ahead of the GPU and
waits only for steps further back. Must not know text, files or evaluation.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor

from training.attention import DocumentLayout, document_mask, masked
from training.data_loader import DataLoader
from training.model import Qwen3
from training.optimizer import Optimizer
from training.pack import Integers, TrainingBatch
from training.schedule import learning_rate_factor
from training.settings import TrainingSettings

_NUM_FIRST_STEPS: Final = 3
"""Steps that compile, the first of them with a long row; the schedule's clock starts after them."""

_MAX_AHEAD: Final = 3
_PROGRESS_S: Final = 5.0

LossFunction = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """One line of the log. `loss` is the mean cross-entropy per trained token since the
    last line.
    """

    step: int
    tokens: int
    tokens_per_s: float
    loss: float
    learning_rate: float
    elapsed_s: float
    remaining_s: float
    unique_tokens: int
    long_batches: int

    def line(self) -> str:
        return (
            f"step {self.step:6d}  {self.tokens / 1e6:8.1f}M tokens  "
            f"{self.tokens_per_s / 1e6:6.3f}M tokens/s  loss {self.loss:.4f} "
            f"lr {self.learning_rate:.3f}  {self.elapsed_s:4.0f} s, {self.remaining_s:4.0f} left, "
            f"data {self.unique_tokens / 1e6:.0f}M, {self.long_batches} long"
        )


def train(
    network: Qwen3, loader: DataLoader, settings: TrainingSettings, deadline: float
) -> list[dict[str, Any]]:
    """Train `network` in place until `deadline` (of `time.monotonic`) or `max_steps`.

    Returns the progress lines as plain objects. Raises `DataLoaderError` if the data ends.
    """
    run = _Run(network, loader, settings, deadline)
    while run.done() < 1.0:
        run.step()
    run.report()
    return [asdict(entry) for entry in run.log]


class _Run:
    def __init__(
        self, network: Qwen3, loader: DataLoader, settings: TrainingSettings, deadline: float
    ) -> None:
        self._network = network
        self._loader = loader
        self._settings = settings
        self._deadline = deadline
        self._device = next(network.parameters()).device
        self._optimizer = Optimizer(
            network,
            muon_lr=settings.muon_lr,
            adam_lr=settings.adam_lr,
            weight_decay=settings.weight_decay,
        )
        self._loss: LossFunction = network.loss
        self._is_compiled = self._device.type == "cuda"
        if self._is_compiled:
            self._loss = torch.compile(network.loss, dynamic=False)
        self._num_steps = 0
        self._began_at = self._reported_at = time.monotonic()
        self._reported_step = 0
        self._factor = 0.0
        self._entropy = torch.zeros((), device=self._device)
        self._behind: deque[torch.cuda.Event] = deque()
        self.log: list[TrainingProgress] = []

    def done(self) -> float:
        """The elapsed share of the run."""
        if self._settings.max_steps is not None:
            return self._num_steps / self._settings.max_steps
        if self._num_steps <= _NUM_FIRST_STEPS:
            return 0.0
        now = time.monotonic()
        return (now - self._began_at) / max(1e-3, self._deadline - self._began_at)

    def step(self) -> None:
        """One batch: forward, backward, update."""
        settings = self._settings
        share = max(self.done(), 1.0 / 4096)
        factor = learning_rate_factor(share, settings.warm_up, settings.decay)
        self._factor = settings.peak * factor
        if self.done() >= settings.long_from:
            self._loader.begin_long()
        entropy = self._learn(self._upload(self._loader.next()))
        self._optimizer.step(self._factor)
        self._entropy += entropy
        self._num_steps += 1
        self._wait_for_earlier()
        if self._num_steps == _NUM_FIRST_STEPS:
            self._start_clock()
        elif time.monotonic() - self._reported_at >= _PROGRESS_S:
            self.report()

    def report(self) -> None:
        """Print and keep a line; waits for the GPU."""
        num_steps = self._num_steps - self._reported_step
        if not num_steps:
            return
        loss = float(self._entropy) / num_steps
        now = time.monotonic()
        batch_tokens = self._settings.rows_per_batch * self._settings.row_length
        entry = TrainingProgress(
            step=self._num_steps,
            tokens=self._num_steps * batch_tokens,
            tokens_per_s=round(num_steps * batch_tokens / (now - self._reported_at)),
            loss=round(loss, 5),
            learning_rate=round(self._factor, 4),
            elapsed_s=round(now - self._began_at, 2),
            remaining_s=round(max(0.0, self._deadline - now), 2),
            unique_tokens=self._loader.num_tokens,
            long_batches=self._loader.num_long,
        )
        self.log.append(entry)
        print(entry.line(), flush=True)
        self._reported_at, self._reported_step = now, self._num_steps
        self._entropy.zero_()

    def _learn(self, inputs: tuple[Any, ...]) -> Tensor:
        """Forward and backward. The first call finds out whether compiled code works here."""
        if self._num_steps or not self._is_compiled:
            return self._forward_backward(inputs)
        try:
            return self._forward_backward(inputs)
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises; eager is exact
            print(f"not compiled, slower: {type(error).__name__}: {error}", flush=True)
        self._loss = self._network.loss
        self._network.zero_grad()
        return self._forward_backward(inputs)

    def _forward_backward(self, inputs: tuple[Any, ...]) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=self._device.type == "cuda"):
            loss, entropy = self._loss(*inputs)
        torch.autograd.backward(loss)
        return entropy

    def _upload(self, batch: TrainingBatch) -> tuple[Any, ...]:
        tokens, positions, sources, targets = (
            self._to_device(torch.from_numpy(array))
            for array in (batch.tokens, batch.positions, batch.sources, batch.targets)
        )
        settings = self._settings
        border = len(tokens)
        layouts: tuple[DocumentLayout, ...] = ()
        if batch.long_bounds is not None:
            border -= settings.long_length
            long = self._layout(batch.long_bounds, positions[border:], settings.long_length)
            layouts = (long,)
        layouts = (self._layout(batch.bounds, positions[:border], settings.row_length), *layouts)
        return tokens, positions, layouts, sources, targets.long(), settings.z_loss

    def _layout(self, bounds: Integers, positions: Tensor, row_length: int) -> DocumentLayout:
        needs_mask = self._network.attention is masked
        mask = document_mask(positions, row_length) if needs_mask else None
        on_device = self._to_device(torch.from_numpy(bounds))
        return DocumentLayout(on_device, mask, row_length, len(positions))

    def _to_device(self, tensor: Tensor) -> Tensor:
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def _wait_for_earlier(self) -> None:
        """Wait for the step `_MAX_AHEAD` steps back, so that clock and GPU agree."""
        if self._device.type != "cuda":
            return
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._behind.append(event)
        if len(self._behind) > _MAX_AHEAD:
            self._behind.popleft().synchronize()

    def _start_clock(self) -> None:
        """Time spent compiling and waiting for data is not part of the schedule."""
        self.report()
        print(f"first steps: {time.monotonic() - self._began_at:.1f} s", flush=True)
        self._began_at = self._reported_at = time.monotonic()
