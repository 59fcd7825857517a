"""One command makes a model directory that our engine and transformers read alike."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.drive import Drive
from gateway.prompt.model_text import ModelText
from protocol.sampling import SamplingParams
from tests.fakes.tiny_models import load_tiny
from training.render import load_template

ROOT = Path(__file__).parents[2]
NUM_TOKENS = 24
MARGIN = 0.9
"""Sixteen steps bring the loss of a tiny network at least this far down, in nats."""


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """The directory, the log and the output of a smoke run."""
    return _trained(tmp_path_factory.mktemp("trained"), 3)


def _trained(out: Path, seed: int, *options: str) -> tuple[Path, dict[str, Any], str]:
    log = out / "log" / "log.json"
    options = ("--out", str(out / "model"), "--minutes", "2", "--json", str(log), *options)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "training",
            "--smoke",
            "--device",
            "cpu",
            "--seed",
            str(seed),
            *options,
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out / "model", json.loads(log.read_text()), done.stdout


def _prompts(model_dir: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    return [
        tokenizer(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
        )["input_ids"]
        for text in ("hi", "What is 12 + 7?", "Repeat: Lomika.", "")
    ]


def test_the_run_reports_and_the_loss_falls(run: tuple[Path, dict[str, Any], str]) -> None:
    """The log holds progress, timings and a score for every skill."""
    _, log, output = run
    losses = [entry["loss"] for entry in log["log"]]
    assert losses[0] - losses[-1] > MARGIN
    assert "tokens/s" in output
    assert {"tokenizer", "training", "export", "evaluation"} <= log["timings_s"].keys()
    assert len(log["evaluation"]["scores"]) > 1
    assert [score["num_cases"] for score in log["evaluation"]["long"]] == [2, 2]
    assert log["log"][0]["long_batches"] == 1
    assert log["long_batches"] > 1


@pytest.mark.slow
def test_a_run_goes_on_from_trained_weights(
    run: tuple[Path, dict[str, Any], str], tmp_path: Path
) -> None:
    """A run goes on from trained weights with their tokenizer, and with a first loss near the last
    one of the run before.
    """
    start, before, _ = run
    further, after, _ = _trained(tmp_path, 4, "--start", str(start))
    assert (further / "tokenizer.json").read_bytes() == (start / "tokenizer.json").read_bytes()
    assert after["log"][0]["loss"] < before["log"][0]["loss"] - MARGIN / 2


def test_the_directory_is_complete_and_its_card_says_what_it_is(
    run: tuple[Path, dict[str, Any], str],
) -> None:
    """Everything that a server or a reader of the directory looks for is there."""
    model_dir = run[0]
    assert {path.name for path in model_dir.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "README.md",
        "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    }  # fmt: skip
    card = (model_dir / "README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in card
    assert "| skill |" in card
    assert (model_dir / "chat_template.jinja").read_text() == load_template().source


def test_the_gateway_reads_the_text_files(run: tuple[Path, dict[str, Any], str]) -> None:
    """Greedy by default, and an answer ends with the turn."""
    files = {path.name: path.read_bytes() for path in run[0].iterdir()}
    del files["model.safetensors"]
    text = ModelText(files)
    assert text.sampling_defaults == {"temperature": 0.0}
    encode = text.encoder.tokenizer.token_to_id
    assert encode("<|im_end|>") in text.eos_ids
    assert text.chat_template == load_template().source


def test_our_engine_and_transformers_say_the_same(
    run: tuple[Path, dict[str, Any], str],
) -> None:
    """Greedy tokens are equal in float32."""
    model_dir = run[0]
    drive = Drive(load_tiny(model_dir, kv_tokens=4096, context_length=1024))
    theirs = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    prompts = _prompts(model_dir)
    for prompt in prompts:
        drive.submit(prompt, SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0))
    drive.finish()
    for prompt, answer in zip(prompts, drive.answers.values(), strict=True):
        out = theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=NUM_TOKENS)[
            0
        ].tolist()[len(prompt) :]
        assert answer.outputs in (out, out[:-1])
        assert len(answer.outputs) >= min(NUM_TOKENS, len(out) - 1)
