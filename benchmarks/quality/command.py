"""`herma bench quality`: a model with settings of a worker beside the same model without them.

Owns the settings, the order of the run and its report. Must not know how a score is made.
"""

import argparse
import gc
import json
from dataclasses import asdict
from typing import Any, Final

import msgspec
import torch

from benchmarks.machine import describe_machine
from benchmarks.progress import progress_bar
from benchmarks.quality.measure import QualityScore, compare, rows
from benchmarks.quality.texts import texts_for
from config import DUMMY_PREFIX, WorkerConfig
from protocol.errors import ConfigError
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner
from workers.model_dir import dummy_names

SETTINGS: Final = (
    "quantization=fp8",
    "quantization=int4",
    "kv_dtype=fp8",
    "quantization=fp8,kv_dtype=fp8",
    "prefill=fp8",
)
"""All ways to 8 bits, and 4. Prompts are in 8 bits in windows of 257 tokens and more."""

_SERVED: Final = "quality"


def run_command(arguments: argparse.Namespace) -> int:
    """Compare, print, write. Raises `ConfigError`."""
    reference = _load(arguments, {})
    model = _model(arguments.model)
    texts = texts_for(
        model,
        reference.model_dir,
        arguments.text or (),
        arguments.tokens,
        arguments.window,
        reference.model.config.vocab_size,
    )
    plain = reference.facts.dtype
    scores = {plain: {name: compare(reference, reference, each) for name, each in texts.items()}}
    for setting in arguments.setting or SETTINGS:
        other = _load(arguments, parse_setting(setting))
        scores[setting] = {
            name: compare(
                reference, other, windows, progress_bar(f"{setting}, {name}", len(windows))
            )
            for name, windows in texts.items()
        }
        del other
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    machine = describe_machine(("torch",))
    print()
    print("\n".join(rows(scores)))
    print(f"\n{arguments.model} on {reference.facts.device}; {'; '.join(machine.values())}")
    if arguments.json is not None:
        arguments.json.write_text(
            f"{json.dumps(_report(arguments.model, machine, scores), indent=2)}\n"
        )
    return 0


def parse_setting(text: str) -> dict[str, Any]:
    """Keys of a worker, as `quantization=fp8,kv_dtype=fp8`. Raises `ConfigError`."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, sign, value = part.partition("=")
        if not sign or key not in WorkerConfig.__struct_fields__:
            raise ConfigError(f"--setting {text!r}: {part!r} is not KEY=VALUE with a worker's key")
        found[key] = {"true": True, "false": False}.get(value, value)
    return found


def _load(arguments: argparse.Namespace, changes: dict[str, Any]) -> ModelRunner:
    given = {
        "name": _SERVED,
        "model": _model(arguments.model),
        "serves": _SERVED,
        "gateways": (),
        "device": arguments.device,
        "token_budget": max(64, arguments.window),
        "max_context": max(1024, arguments.window + 1),
        "kv_tokens": 2 * max(1024, arguments.window + 1),
        "max_seqs": 1,
        **changes,
    }
    try:
        config = msgspec.convert(given, WorkerConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--setting: {error}") from error
    return load_runner(config, lambda *_: None)


def _model(name: str) -> str:
    return f"{DUMMY_PREFIX}{name}" if name in dummy_names() else name


def _report(
    model: str, machine: dict[str, str], scores: dict[str, dict[str, QualityScore]]
) -> dict[str, Any]:
    named = {
        setting: {
            text: {
                **asdict(score),
                "perplexity": score.perplexity,
                "agreement": score.agreement,
                "mean_divergence": score.mean_divergence,
            }
            for text, score in by_text.items()
        }
        for setting, by_text in scores.items()
    }
    return {"model": model, "machine": machine, "scores": named}
