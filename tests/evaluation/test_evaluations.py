"""Programs that evaluate and measure servers, unmodified, against the built-in model.

`make test-evaluations` installs them; a program that is not installed is skipped.
"""

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.evaluation.install import command_of
from tests.fakes.herma_process import HermaProcess, herma_up
from workers.model_dir import builtin_dir

RUN_S: Final = 600
NUM_DOCS: Final = 24
MODEL = builtin_dir("builtin:herma-tiny")
FLEET = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "alpha"

[[workers]]
name = "a"
model = "builtin:herma-tiny"
serves = "alpha"
"""
TASK = """
task: herma_choices
dataset_path: json
dataset_kwargs:
  data_files:
    test: {docs}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""
WORDS = ("one", "two", "red", "blue", "cat", "house", "water", "Paris", "list", "file")

pytestmark = pytest.mark.slow


def _command(name: str) -> Path:
    folder = os.environ.get("HERMA_EVALUATIONS_DIR")
    found = None if folder is None else command_of(Path(folder), name)
    if found is None:
        pytest.skip(f"{name} is not installed; see make test-evaluations")
    return found


@pytest.fixture(scope="module", name="herma")
def _herma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HermaProcess]:
    folder = tmp_path_factory.mktemp("fleet")
    config = folder / "herma.toml"
    config.write_text(FLEET.format(folder=folder))
    with herma_up(config) as herma:
        herma.wait_models_ready({"alpha": 1})
        yield herma


def _docs() -> list[dict[str, Any]]:
    """Questions whose answers a small model half knows: a sequence of words that goes on."""
    rng = random.Random(5)
    docs = []
    for _ in range(NUM_DOCS):
        choices = rng.sample(WORDS, 4)
        question = " ".join([*choices, *choices[:3]])
        docs.append({"question": question, "choices": choices, "answer": rng.choice((3, 3, 0, 1))})
    return docs


def _accuracy(docs: list[dict[str, Any]]) -> float:
    """The accuracy by transformers: the likeliest continuation behind the question and a space."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    num_right = 0
    for doc in docs:
        sums = []
        for choice in doc["choices"]:
            context = tokenizer(doc["question"], add_special_tokens=False).input_ids
            whole = tokenizer(f"{doc['question']} {choice}", add_special_tokens=False).input_ids
            begin = len(context)
            whole = context + whole[begin:]  # as lm-eval joins them
            with torch.inference_mode():
                rows = model(torch.tensor([whole])).logits[0].log_softmax(-1)
            own = [float(rows[at - 1, whole[at]]) for at in range(begin, len(whole))]
            sums.append(sum(own))
        num_right += sums.index(max(sums)) == doc["answer"]
    return num_right / len(docs)


@pytest.mark.parametrize("backend", ["remote", "huggingface"])
def test_lm_eval_gives_the_accuracy_of_transformers(
    herma: HermaProcess, tmp_path: Path, backend: str
) -> None:
    """lm-eval's accuracy is that of transformers in a loglikelihood task over `/v1/completions`,
    with the server's tokenizer or its own.
    """
    command, docs = _command("lm-eval"), _docs()
    lines = tmp_path / "docs.jsonl"
    lines.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    (tmp_path / "task.yaml").write_text(TASK.format(docs=lines))
    arguments = f"model=alpha,base_url={herma.base_url}/completions,tokenizer_backend={backend}"
    arguments += ",num_concurrent=2,max_retries=1,tokenized_requests=True"
    if backend == "huggingface":
        arguments += f",tokenizer={MODEL}"
    options = {
        "--model": "local-completions",
        "--model_args": arguments,
        "--tasks": "herma_choices",
        "--include_path": tmp_path,
        "--output_path": tmp_path / "out",
    }
    _run([command], options)
    (report,) = tmp_path.glob("out/**/results_*.json")
    found = json.loads(report.read_text())["results"]["herma_choices"]["acc,none"]
    assert found == pytest.approx(_accuracy(docs))
    print(f"lm-eval with the {backend} tokenizer: accuracy {found:.3f}, as transformers")


def test_guidellm_measures(herma: HermaProcess, tmp_path: Path) -> None:
    """All requests are whole, with the token counts of the usage."""
    command, report = _command("guidellm"), tmp_path / "report.json"
    server = herma.base_url.removesuffix("/v1")
    options = {
        "--backend": f"kind=openai_http,target={server},model=alpha",
        "--profile": "kind=synchronous",
        "--constraint": "kind=max_requests,count=5",
        "--tokenizer": f"kind=huggingface_auto,model={MODEL}",
        "--data": "kind=synthetic_text,prompt_tokens=32,output_tokens=16",
        "--output": f"kind=json,path={report}",
    }
    _run([command, "run", "--disable-console"], options)
    (found,) = json.loads(report.read_text())["benchmarks"]
    assert len(found["requests"]["successful"]) == 5
    assert not found["requests"]["errored"]
    print("guidellm: 5 requests, no error")


def _run(command: list[str | Path], options: dict[str, str | Path]) -> None:
    made = subprocess.run(
        [*command, *(word for option in options.items() for word in option)],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert made.returncode == 0, (made.stdout + made.stderr)[-3000:]
