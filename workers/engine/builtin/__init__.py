"""The model that needs no download: a tiny random Qwen3 with a tokenizer of its own.

Owns its directory in the cache. It is for trying Herma, for tests and for load: it speaks words,
not sense. Made on first start in about a second; the same files on every host.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

from safetensors.torch import save_file
from tokenizers import Tokenizer

from protocol.errors import ConfigError
from workers.engine.builtin import tokenizer as builtin_tokenizer
from workers.engine.builtin import weights as builtin_weights
from workers.engine.builtin.corpus import corpus
from workers.engine.checkpoint import SINGLE_NAME
from workers.engine.weights import Report

__all__ = ["PREFIX", "builtin_dir"]

PREFIX: Final = "builtin:"
NAME: Final = "herma-tiny"
CONTEXT_LENGTH: Final = 65_536

REVISION: Final = 1
"""Rises with every change of the files, so that an old cache is not taken for the new model."""


def builtin_dir(model: str, environ: Mapping[str, str], report: Report) -> Path:
    """The directory of `builtin:herma-tiny`, made now unless it is in the cache.

    The cache is HERMA_CACHE_DIR, else ~/.cache/herma. Raises `ConfigError` for another name or a
    cache that cannot be written.
    """
    if model != f"{PREFIX}{NAME}":
        raise ConfigError(f"model {model!r} does not exist: the built-in one is {PREFIX}{NAME}")
    chosen = environ.get("HERMA_CACHE_DIR")
    cache = Path(chosen) if chosen else Path("~/.cache/herma").expanduser()
    target = cache / "models" / f"{NAME}-{REVISION}"
    if target.is_dir():
        return target
    report("build", 0.0, f"{NAME}: its tokenizer and weights, once")
    try:
        _make_atomically(target)
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be made ({error}): set HERMA_CACHE_DIR to a directory to write to"
        ) from error
    report("build", 1.0, f"{NAME} is in {target}")
    return target


def _make_atomically(target: Path) -> None:
    """Write beside the target and rename; of two processes that do so at once one wins."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _write(draft)
        draft.chmod(0o755)
        draft.rename(target)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not target.is_dir():
            raise


def _write(model_dir: Path) -> None:
    tokenizer = builtin_tokenizer.train(corpus())
    vocabulary = tokenizer.get_vocab()
    eos_id = vocabulary[builtin_tokenizer.END_OF_TURN]
    pad_id = vocabulary[builtin_tokenizer.END_OF_TEXT]
    template = files("workers.engine.builtin").joinpath("chat_template.jinja")
    texts = {
        "tokenizer.json": builtin_tokenizer.to_json(_as_object(tokenizer)),
        "tokenizer_config.json": builtin_tokenizer.to_json(builtin_tokenizer.tokenizer_config()),
        "chat_template.jinja": template.read_text(encoding="utf-8"),
        "config.json": builtin_tokenizer.to_json(
            builtin_weights.config(len(vocabulary), CONTEXT_LENGTH, eos_id, pad_id)
        ),
        "generation_config.json": builtin_tokenizer.to_json({"eos_token_id": eos_id}),
    }
    for name, text in texts.items():
        (model_dir / name).write_text(text, encoding="utf-8")
    pieces = tokenizer.decode_batch(
        [[i] for i in range(len(vocabulary))], skip_special_tokens=False
    )
    silent = {i for i, piece in enumerate(pieces) if _is_silent(piece)} - {eos_id}
    line_ends = [i for i, piece in enumerate(pieces) if piece.endswith("\n")]
    tensors = builtin_weights.make_weights(len(pieces), eos_id, silent, line_ends)
    save_file(tensors, model_dir / SINGLE_NAME, metadata={"format": "pt"})


def _as_object(tokenizer: Tokenizer) -> object:
    return json.loads(tokenizer.to_str())


def _is_silent(piece: str) -> bool:
    """Special tokens, markers, control characters, and pieces that are no whole characters."""
    reserved = {*builtin_tokenizer.SPECIAL, *builtin_tokenizer.MARKERS}
    return piece in reserved or "\ufffd" in piece or not piece.isprintable()
