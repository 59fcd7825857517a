"""The whole run from a seed to a model directory.

Owns the order of the stages and their time limits. Must not know how any of them works.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer

from training.attention import choose_attention
from training.data_loader import DataLoader
from training.evaluate import Evaluation, evaluate
from training.export import TOKENIZER_NAME, export, load_weights, round_to_bfloat16
from training.loop import train
from training.model import Qwen3
from training.model_card import model_card
from training.plot import plot_loss
from training.render import load_template
from training.settings import TrainingSettings
from training.tokenizer import to_json
from training.tokenizer import train as train_tokenizer

DEFAULT_MAX_TOKENS: Final = 1_000_000_000
_SPARE_CORES: Final = 2
"""Cores for the training process and its thread that builds batches."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The arguments of the command line. `minutes` bounds all stages together. `start` is an
    exported model whose tokenizer and weights the run begins with, None for a new one.
    """

    out: Path
    seed: int
    minutes: float
    max_tokens: int
    device: torch.device
    json_path: Path | None
    plot_path: Path | None
    start: Path | None = None


def run(job: TrainingJob, settings: TrainingSettings) -> Evaluation:
    """Make the model and write its directory. Raises `DataLoaderError` if the data fails."""
    began_at = time.monotonic()
    timings: dict[str, float] = {}
    stage = _stages(timings)
    num_streams = max(1, (os.cpu_count() or 1) - _SPARE_CORES)
    torch.manual_seed(job.seed)
    with DataLoader(settings, job.seed, num_streams, job.max_tokens) as loader:
        with stage("tokenizer"):
            tokenizer = _tokenizer(job, loader, settings)
            settings = replace(settings, vocab_size=tokenizer.get_vocab_size())
        loader.start(tokenizer.to_str())
        with stage("network"):
            network = _network(settings, job.device)
            if job.start is not None:
                load_weights(network, job.start)
        with stage("training"):
            deadline = began_at + job.minutes * 60 - settings.reserve_s
            log = train(network, loader, settings, deadline)
        facts = {
            "dropped_documents": loader.dropped,
            "rejected_batches": loader.num_rejected,
            "repeated_rows": loader.num_repeated,
            "long_batches": loader.num_long,
        }
    with stage("export"):
        round_to_bfloat16(network)
        template = load_template()
        export(network, tokenizer, template, job.out)
    with stage("evaluation"):
        evaluation = evaluate(network, tokenizer, template, settings)
    print(evaluation.table(), flush=True)
    total_s = time.monotonic() - began_at
    card = model_card(
        settings,
        evaluation,
        vocabulary=settings.vocab_size,
        num_parameters=sum(p.numel() for p in network.parameters()),
        seed=job.seed,
        device=_device_name(job.device),
        last=log[-1],
        total_s=total_s,
    )
    (job.out / "README.md").write_text(card, encoding="utf-8")
    _write_log(job, {"timings_s": timings, **facts}, log, evaluation)
    print(f"{job.out} is complete after {total_s:.1f} s; {facts}", flush=True)
    return evaluation


def _tokenizer(job: TrainingJob, loader: DataLoader, settings: TrainingSettings) -> Tokenizer:
    if job.start is not None:
        return Tokenizer.from_file(str(job.start / TOKENIZER_NAME))
    return train_tokenizer(loader.sample(), settings.vocab_size)


def _network(settings: TrainingSettings, device: torch.device) -> Qwen3:
    shape = settings.shape
    attention = choose_attention(device, shape.num_heads, shape.head_dim)
    network = Qwen3(shape, settings.vocab_size, attention).to(device)
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    print(
        f"network: {num_parameters / 1e6:.2f}M parameters, {settings.vocab_size} entries, "
        f"attention by {attention.__name__} on {_device_name(device)}",
        flush=True,
    )
    return network


def _stages(timings: dict[str, float]) -> Callable[[str], Any]:
    """Context managers that time and name the stages."""

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        began_at = time.monotonic()
        yield
        timings[name] = round(time.monotonic() - began_at, 2)
        print(f"{name}: {timings[name]:.1f} s", flush=True)

    return stage


def _write_log(
    job: TrainingJob, facts: dict[str, Any], log: list[dict[str, Any]], evaluation: Evaluation
) -> None:
    if job.plot_path is not None:
        plot_loss(log, job.plot_path)
    if job.json_path is not None:
        job.json_path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "seed": job.seed,
            "device": _device_name(job.device),
            "torch": torch.__version__,
            **facts,
            "evaluation": evaluation.as_json(),
            "log": log,
        }
        job.json_path.write_text(to_json(content), encoding="utf-8")


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
