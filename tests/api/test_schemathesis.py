"""schemathesis, which makes requests out of the API's own description, finds nothing.

It lives in an environment of its own (`make test-api`).
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.fakes.whole_gateway import whole_gateway
from tests.fakes.worker import FakeWorker

CONFIG = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = 100


@pytest.mark.slow
async def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """Every described operation, valid and invalid bodies, undescribed methods; all checks."""
    program = os.environ.get("SCHEMATHESIS_PROGRAM")
    if program is None:
        pytest.skip("SCHEMATHESIS_PROGRAM names none; `make test-api` does")
    worker = FakeWorker(text="A short answer.", context_length=65_536)
    async with whole_gateway(worker, patience_s=1800) as whole:
        description = tmp_path / "openapi.json"
        described = _with_our_model((await whole.get("/openapi.json")).json)
        description.write_bytes(msgspec.json.encode(described))
        done = await trio.run_process(
            [
                program, "--config-file", str(CONFIG), "run", str(description),
                "--url", whole.url,
                "--exclude-path", "/events",  # it has no end
                "--checks", "all", "--max-examples", str(EXAMPLES), "--seed", "1",
                "--phases", "examples,coverage,fuzzing", "--request-timeout", "20",
                "--suppress-health-check", "all", "--no-color", "--continue-on-failure",
            ],
            cwd=tmp_path,
            check=False,
            capture_stdout=True,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout.decode()[-20_000:]


def _with_our_model(description: Any) -> Any:
    """The description for a gateway whose only model is `alpha`, so that requests get through."""
    schemas = description["components"]["schemas"]
    for name in ("ChatBody", "CompletionBody"):
        schemas[name]["properties"]["model"] = {"const": "alpha"}
    for name in ("TokenizeBody", "DetokenizeBody"):
        schemas[name]["properties"]["model"] = {"enum": ["alpha", None]}
    for path in ("/models/{name}", "/v1/models/{name}"):
        description["paths"][path]["parameters"][0]["schema"] = {"const": "alpha"}
    return description
