"""Every block of TOML in README and docs is read by the program that it is for.

A block marked `toml` is a whole file of Herma's. One marked `toml fragment` is completed here by
what it leaves out: names, models, addresses, references, hashes and keys; nothing that stands in it
is changed, but for `...`. `toml script` is a scripted engine's file, `toml client` a client's.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config import find_mistakes
from herma.clients.merging import toml_value
from workers.replay.script import parse_script

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
BLOCK = re.compile(r"^```toml *(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
CURVE = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
PLACE = re.compile(r'"(\.\.\.|PUBLIC KEY OF [^"]*)"')


def blocks() -> Iterator[Any]:
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        for number, found in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")), 1):
            yield pytest.param(found["kind"], found["text"], id=f"{name}-{number}")


@pytest.mark.parametrize(("kind", "text"), [*blocks()])
def test_a_block_is_read(kind: str, text: str) -> None:
    """Without a mistake; a fragment needs its completion, or it is a whole file."""
    if kind == "client":
        assert tomllib.loads(text)
        return
    if kind == "script":
        assert parse_script(text, "page").rules
        return
    if kind == "":
        assert find_mistakes(text, "page") == []
        return
    assert kind == "fragment"
    assert find_mistakes(text, "page") != []
    whole = text_of(completed(tomllib.loads(filled(text))))
    assert find_mistakes(whole, "page") == []


def filled(text: str) -> str:
    """With hashes and keys where the page has dots."""
    for number in range(text.count("sha256:...")):
        text = text.replace("sha256:...", f"sha256:{number:064}", 1)
    return PLACE.sub(lambda _: toml_value(CURVE), text)


def completed(raw: dict[str, Any]) -> dict[str, Any]:
    """With all that a file needs beside it."""
    for number, worker in enumerate(raw.get("workers", [])):
        is_foreign = "group" in worker and "rendezvous" not in worker
        engine = worker.get("engine", "vllm" if is_foreign else "native")
        worker.setdefault("name", f"w{number}")
        worker.setdefault("model", "org/model")
        worker.setdefault("serves", "m")
        if is_foreign:
            worker.setdefault("engine", engine)
            worker.setdefault("launch", {"argv": ["vllm"]})
        if engine not in {"native", "synthetic"} and not worker.get("rank"):
            worker.setdefault("url", "http://127.0.0.1:8000")
    workers = raw.setdefault("workers", [])
    for host in raw.get("hosts", []):
        for name in host["workers"]:
            workers.append({"name": name, "model": "org/model", "serves": "m"})
        raw.setdefault("models", []).extend({"name": name} for name in host.get("models", []))
    for model in raw.get("models", []):
        for target in model.get("fallback", []):
            providers = raw.setdefault("providers", {})
            providers.setdefault(target["provider"], {"base_url": "https://cloud.test/v1"})
    if raw.get("gateway", {}).get("curve_worker_keys"):
        raw["gateway"].setdefault("curve_secret_file", "gateway.key")
    served = {worker["serves"] for worker in workers}
    named = {model["name"] for model in raw.get("models", [])}
    raw.setdefault("models", []).extend({"name": name} for name in sorted(served - named))
    return raw


def text_of(value: Any) -> str:
    """A file of one line for each key of its top level."""
    return "".join(f"{key} = {_inline(inner)}\n" for key, inner in value.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        inner = (f"{toml_value(key)} = {_inline(item)}" for key, item in value.items())
        return f"{{ {', '.join(inner)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return toml_value(value)
