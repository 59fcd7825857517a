"""A hub id is fetched once: text files and the safetensors that the index names, nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fakes.model_hub import COMMIT, model_hub
from tests.fakes.tiny_models import load_tiny, write_tiny_model

# The library reads its environment when it is imported, so it gets a process of its own.
SCRIPT = """
import json, sys
from protocol.errors import ConfigError
from workers.engine.model_source import find_model

answers = []
for model in sys.argv[1:]:
    reports = []
    try:
        found = str(find_model(model, lambda *said: reports.append(said)))
    except ConfigError as error:
        found = f"refused: {error}"
    answers.append({"found": found, "reports": reports})
print(json.dumps(answers))
"""


def _find(home: Path, endpoint: str, *models: str) -> list[dict[str, list[list[object]]]]:
    env = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *models],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    answers: list[dict[str, list[list[object]]]] = json.loads(done.stdout)
    return answers


def test_models_come_from_the_hub_and_then_from_its_cache(tmp_path: Path) -> None:
    """Shards and text files are fetched, code and pickles are not; offline the cache serves."""
    repos = tmp_path / "repos"
    whole = write_tiny_model(repos / "owner/whole", shards=2)
    for name in ("tokenizer.json", "generation_config.json"):
        (whole / name).write_text(json.dumps({"name": name}))
    for name in ("modeling_whole.py", "pytorch_model.bin", "original/model.safetensors"):
        (whole / name).parent.mkdir(exist_ok=True)
        (whole / name).write_text("not to be fetched")
    write_tiny_model(repos / "owner/single")
    pickled = write_tiny_model(repos / "owner/pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    home = tmp_path / "home"
    names = ("owner/whole", "owner/single", "owner/pickled", "owner/absent")
    with model_hub(repos) as hub:
        answers = _find(home, hub.url, *names)
        fetched = sorted(hub.fetched)
    found = [str(answer["found"]) for answer in answers]
    assert found[0].endswith(COMMIT)
    assert load_tiny(Path(found[0])).facts.context_length == 1024
    assert load_tiny(Path(found[1])).facts.context_length == 1024
    assert found[2].startswith("refused: owner/pickled has no model.safetensors")
    assert found[3].startswith("refused: model 'owner/absent' cannot be fetched")
    assert not any("\n" in line for line in found)
    unwanted = {"modeling_whole.py", "pytorch_model.bin", "original/model.safetensors"}
    assert not set(fetched) & unwanted
    assert fetched.count("tokenizer.json") == 1
    phases = {str(said[0]) for said in answers[0]["reports"]}
    assert phases == {"download"}
    again = _find(home, "http://127.0.0.1:9", names[0], "owner/other")
    assert again[0]["found"] == found[0]
    assert str(again[1]["found"]).startswith("refused: model 'owner/other' cannot be fetched")
