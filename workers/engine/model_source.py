"""The weights that a worker's configuration names: a model's, and those of a network that drafts.

Owns how they are found, read, checked and read again, whole or as the share of a rank. Must not
know the memory for keys and values, nor steps.
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from config import DUMMY_PREFIX, INDEX_DRAFTERS, WorkerConfig
from housekeeping.own_code import module_argv
from kernels.experts import check_on_card
from kernels.fp8 import Fp8Weight
from kernels.linear import check_int4
from kernels.mxfp4 import Mxfp4Weight
from protocol.errors import ConfigError
from workers.engine.drafting.description import names_head
from workers.engine.drafting.drafter import Drafter
from workers.engine.drafting.load import has_own_head, load_drafter
from workers.engine.load.placing import place_experts
from workers.engine.load.report import Report, phase_of
from workers.engine.memory.out_of_memory import is_out_of_memory, shortage
from workers.engine.models.description import Experts, ModelDescription
from workers.engine.models.dummy import draw_weights
from workers.engine.models.model_config import read_model_config
from workers.engine.models.network import Network
from workers.engine.models.weight_reader import load_weights
from workers.engine.models.weights import ModelWeights
from workers.engine.parallel.ranks import Ranks
from workers.engine.parallel.shares import LayerCut, config_of, cut_and_then, model_of
from workers.engine.settings import (
    compute_dtype,
    layer_change,
    vocabulary_form,
    window,
    with_windows,
)
from workers.engine.sleep.device_sleep import DeviceSleep, NoSleep
from workers.engine.sleep.read_again import LayerChange, copy_into, read_again
from workers.engine.sleep.weight_tensors import tensors_of
from workers.model_dir import drafter_dir, local_dir


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The model of `config`, in the folder `model_dir`, for steps that compute in `dtype` on
    `device`. `shape` describes the whole network, of which each of `ranks` has a share.
    """

    config: WorkerConfig
    model_dir: Path
    shape: ModelDescription
    device: torch.device
    dtype: torch.dtype
    ranks: Ranks | None

    @staticmethod
    def of(
        config: WorkerConfig, model_dir: Path, device: torch.device, ranks: Ranks | None
    ) -> "ModelSource":
        """Read what the folder says of the network. Raises `ConfigError`."""
        shape = read_model_config(model_dir)
        shape = with_windows(config, shape, is_drafting=_may_draft(config, model_dir))
        dtype = compute_dtype(config, shape, device)
        return ModelSource(config, model_dir, shape, device, dtype, ranks)

    @property
    def own_shape(self) -> ModelDescription:
        """The network of this process: the whole one, or a rank's share."""
        return self.shape if self.ranks is None else config_of(self.shape, self.ranks.share)

    def load(self, report: Report) -> ModelWeights:
        """Load the weights, or a rank's share of them, to their device. For weights in 4 bits this
        also checks the kernels that multiply them on the device, because a check cannot run inside
        a capture. Raises `ConfigError`.
        """
        with phase_of(report, "load", self.config.model):
            change = self._change()
            if self.ranks is None:
                weights = self._read(report, change)
            else:
                change = cut_and_then(LayerCut(self.shape, self.ranks.share), change)
                weights = model_of(self._read(report, change), self.shape, self.ranks.share)
        if self.device.type == "cuda":
            if weights.has_int4:
                report("check", 0.0, "4-bit products")
                print(check_int4(self.device, self.dtype).text, file=sys.stderr)
            check_experts(self.shape, weights, self.device, report)
            weights = place_experts(self.shape, weights, self.dtype)
        return weights

    def sleep_with(self, sleep: DeviceSleep | NoSleep, weights: ModelWeights) -> None:
        """Let `weights`, which are a whole model's, sleep; they are read again at a wake. Raises
        `ConfigError` then.
        """
        read = partial(self._read, _untold)
        sleep.adopt(tensors_of(weights), lambda: read_again(weights, self._change(), read))

    def drafter_sleeps_with(
        self, sleep: DeviceSleep | NoSleep, model: Network, drafter: Drafter | None
    ) -> None:
        """Let the drafter's weights sleep together with the target's weights."""
        if drafter is not None:
            again = partial(self._drafter, model, _untold)
            sleep.adopt(tensors_of(drafter), lambda: copy_into(drafter, again()))

    def drafter(self, model: Network, report: Report) -> Drafter | None:
        """The drafting network of the configuration, if it names one, or with "auto" the
        checkpoint's own head, at all ranks or at none. Raises `ConfigError`.
        """
        drafter = self._drafter(model, report)
        if model.ranks is None or self.config.drafting is None:
            return drafter
        if model.ranks.agreed(drafter is not None):
            return drafter
        if drafter is not None:
            leave_out_head("another rank has none that it can use")
        return None

    def _change(self) -> LayerChange | None:
        return layer_change(self.config, self.shape, self.dtype, self.device)

    def _read(self, report: Report, change: LayerChange | None) -> ModelWeights:
        """Read or draw the weights, with each layer changed."""
        shape, device, dtype = self.shape, self.device, self.dtype
        vocabulary = vocabulary_form(self.config, shape)
        if self.config.model.startswith(DUMMY_PREFIX):
            return draw_weights(
                shape, device, dtype, change=change, vocabulary=vocabulary, draws_experts=True
            )
        return load_weights(
            self.model_dir, shape, device, dtype, report, change=change, vocabulary=vocabulary
        )

    def _drafter(self, model: Network, report: Report) -> Drafter | None:
        config, chosen = self.config, self.config.drafting
        if chosen is None:
            return None
        if chosen.drafter not in INDEX_DRAFTERS:
            path = drafter_dir(chosen.drafter) or _fetched(chosen.drafter, report)
            with phase_of(report, "load", f"drafter {chosen.drafter}"):
                return load_drafter(path, model, window(config, model.config))
        return self._own_head(model, report) if config.speculation == "auto" else None

    def _own_head(self, model: Network, report: Report) -> Drafter | None:
        """The MTP head of the model's checkpoint. An unusable head is left out and logged, so that
        the worker serves.
        """
        try:
            is_drawn = self.config.model.startswith(DUMMY_PREFIX)
            if is_drawn or not has_own_head(self.model_dir, model.config):
                return None
            with phase_of(report, "load", "the checkpoint's MTP head"):
                return load_drafter(self.model_dir, model, window(self.config, model.config))
        except ConfigError as error:
            leave_out_head(error)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            leave_out_head(f"its weights do not fit beside the model's: {shortage(error)}")
        return None


def find_model(model: str, report: Report) -> Path:
    """The directory of a model, downloaded from the hub if necessary. Raises `ConfigError`."""
    return local_dir(model) or _fetched(model, report)


def leave_out_head(why: object) -> None:
    """Say why the MTP head that "auto" has found is not used."""
    line = f'speculation = "auto": drafts come from earlier text, not from an MTP head: {why}'
    print(line, file=sys.stderr, flush=True)


def check_experts(
    shape: ModelDescription, weights: ModelWeights, device: torch.device, report: Report
) -> None:
    """Check the kernels of experts in 8 bits and in MXFP4, by the first layer that has such."""
    for layer, own in zip(shape.layers, weights.layers, strict=False):
        mlp, gates, downs = layer.mlp, own.gate_up, own.down
        if not (
            isinstance(mlp, Experts)
            and isinstance(gates, Fp8Weight | Mxfp4Weight)
            and isinstance(downs, Fp8Weight | Mxfp4Weight)
        ):
            continue
        report("check", 0.0, "experts' kernels")
        command = module_argv("kernels.experts.card_check")
        said = check_on_card(
            device, gates, downs, mlp.routing, mlp.activation, command, has_bias=mlp.biased
        )
        print(said, file=sys.stderr)
        return


def _may_draft(config: WorkerConfig, model_dir: Path) -> bool:
    """Whether a drafting network may run behind the steps, before it is known whether it loads and
    fits.
    """
    chosen = config.drafting
    if chosen is None:
        return False
    if chosen.drafter not in INDEX_DRAFTERS:
        return True
    is_drawn = config.model.startswith(DUMMY_PREFIX)
    return config.speculation == "auto" and not is_drawn and names_head(model_dir)


def _fetched(model: str, report: Report) -> Path:
    # Its HTTP client takes 0.3 s to import, and most starts need none.
    from workers.engine.load.hub import fetch_model  # noqa: PLC0415

    return fetch_model(model, report)


def _untold(_phase: str, _fraction: float, _detail: str) -> None:
    """Report nothing: the process has started."""
