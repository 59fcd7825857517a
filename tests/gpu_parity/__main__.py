"""`python -m tests.gpu_parity`: checks the engine on this card, and measures its speed.

A random model of Qwen3-0.6B's shape is written to a temporary directory, loaded as a worker loads
it, and compared with `transformers` in the same dtype and in float32: logits, greedy tokens, and
the integrity of the records after hundreds of requests with aborts and preemption. Needs no
network. Ends with 1 if any check fails.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.result_file import result_file
from config import WorkerConfig
from tests.fakes.tiny_models import write_tiny_model
from tests.gpu_parity.churn import check_churn
from tests.gpu_parity.greedy import check_greedy
from tests.gpu_parity.logits import RULE, check_logits
from tests.gpu_parity.report import Check, table
from tests.gpu_parity.scale import CARD, TINY, Scale
from tests.gpu_parity.speed import measure
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner

_PACKAGES = ("torch", "triton", "transformers", "safetensors")


def main() -> int:
    """Print every check, then the figures; write JSON if asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_parity")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, for a CPU")
    parser.add_argument("--json", type=result_file, metavar="FILE")
    arguments = parser.parse_args()
    started_at = time.perf_counter()
    checks: list[Check] = []
    with tempfile.TemporaryDirectory() as directory:
        parity = Parity(TINY if arguments.tiny else CARD, arguments.device, Path(directory))
        for check in parity.checks():
            checks.append(check)
            elapsed_s = time.perf_counter() - started_at
            print(f"{elapsed_s:6.1f} s  {'ok' if check.ok else 'FAILED':6}  {check.name}")
            sys.stdout.flush()
        figures = parity.figures()
    report = {
        "machine": _machine(arguments.device),
        "rule": f"error against float32 <= {RULE} x that of transformers in the same dtype",
        "seconds": round(time.perf_counter() - started_at, 1),
        "checks": [check._asdict() for check in checks],
        "figures": figures,
    }
    _print(report, checks, figures)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if checks and all(check.ok for check in checks) else 1


class Parity:
    """One model, loaded by us, by `transformers` in the same dtype, and in float32."""

    def __init__(self, scale: Scale, device: str, directory: Path) -> None:
        self._scale = scale
        model_dir = write_tiny_model(directory / "model", std=scale.std, **scale.shape)
        # No TF32: the reference must be float32.
        torch.set_float32_matmul_precision("highest")
        self.runner = _load(model_dir, device, scale)
        self._vocab_size = int(json.loads((model_dir / "config.json").read_text())["vocab_size"])
        dtype = getattr(torch, self.runner.facts.dtype)
        self._same_dtype = _reference(model_dir, device, dtype, "sdpa")
        self._float32 = _reference(model_dir, device, torch.float32, "eager")

    def checks(self) -> Iterator[Check]:
        """All checks, in the order in which they depend on each other."""
        scale, rng = self._scale, random.Random(0)
        prompts = [
            [rng.randrange(self._vocab_size) for _ in range(length)] for length in scale.prompts
        ]
        noise = check_logits(self.runner, self._same_dtype, self._float32, prompts)
        yield from noise.checks
        yield from check_greedy(self.runner, self._float32, prompts, scale, noise.margin)
        yield from check_churn(self.runner, self._vocab_size, scale)

    def figures(self) -> dict[str, float]:
        """The engine's speed."""
        return measure(self.runner, self._vocab_size, self._scale)


def _load(model_dir: Path, device: str, scale: Scale) -> ModelRunner:
    config = WorkerConfig(
        name="parity",
        model=str(model_dir),
        serves="model",
        gateways=(),
        device=device,
        max_seqs=scale.churn_concurrency,
        token_budget=max(scale.budgets),
        kv_tokens=scale.kv_tokens,
        # On a CPU "auto" means float32; the checks are about the dtype of the checkpoint.
        dtype="auto" if device.startswith("cuda") else scale.shape["dtype"],
    )
    return load_runner(config, lambda _phase, _fraction, _detail: None)


def _reference(model_dir: Path, device: str, dtype: torch.dtype, attention: str) -> Any:
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=dtype, attn_implementation=attention, local_files_only=True
    )
    return model.to(device).eval()


def _machine(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    packages = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    return {"device": name, "python": sys.version.split()[0], "packages": packages}


def _print(report: dict[str, Any], checks: list[Check], figures: dict[str, float]) -> None:
    print(f"\n{table(checks)}\n\n| figure | value |\n|---|---|")
    for name, value in figures.items():
        print(f"| {name} | {value:.4g} |")
    print(f"\n{'; '.join(report['machine'].values())}; {report['seconds']} s; {report['rule']}")


if __name__ == "__main__":
    sys.exit(main())
