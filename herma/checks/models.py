"""The models and drafters that a configuration names, as they lie on this host.

Owns the lines for what is missing or damaged. Must not know which command asks for them, and writes
no file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from config import (
    BUILTIN_PREFIX,
    DUMMY_PREFIX,
    EXTERNAL_ENGINES,
    INDEX_DRAFTERS,
    TEXT_ENGINE,
    Config,
    WorkerConfig,
    builtin_drafters,
    builtin_models,
    is_hub_id,
    no_drafter,
    no_model,
)
from protocol.errors import ConfigError

_SAMPLE: Final = "Hello"
"""A text to encode: some damaged tokenizers load, and then fail at every text."""
_MODEL_SIGNS: Final = ("config.json", "tokenizer.json", "tekken.json")
"""A directory with one of them holds a model, if not all of it."""


def missing_models(config: Config) -> Iterator[str]:
    """One line for each worker whose `model` is not a directory of this host."""
    from workers.model_dir import file_model

    for worker in config.workers:
        if worker.engine == TEXT_ENGINE:
            continue
        path = found(worker.model)
        if worker.model in builtin_models() or (path is not None and path.is_dir()):
            continue
        if worker.engine in ("native", *EXTERNAL_ENGINES) and is_hub_id(worker.model):
            continue  # fetched at the start, unless the hub's cache has it
        if worker.engine != "native":
            yield (
                f"worker `{worker.name}`: there is no directory {worker.model} on this host, and "
                f"the {worker.engine} engine needs its tokenizer"
            )
        elif worker.model.startswith(DUMMY_PREFIX):
            yield (
                f"worker `{worker.name}`: {worker.model} is a shape for `herma plan` and `herma "
                "bench`, without a tokenizer to serve it by"
            )
        else:
            why = f"on this host {no_model(worker.model)}" if path is None else file_model(path)
            yield f"worker `{worker.name}`: {why}"


def check_only_model(config: Config) -> None:
    """Raise `ConfigError` for a directory without a model, where nothing else is served. The engine
    would say the same, and a worker of a file waits for its correction.
    """
    from workers.model_dir import check_dirs

    for worker in config.workers:
        check_dirs(worker)


def check_model_texts(config: Config) -> Iterator[str]:
    """One line for each problem of the text files of a model directory of this host. Raises
    `ConfigError` for files that no gateway could use, and for weights in a form that Herma's own
    engine does not read; those of built-in models are tested.
    """
    from gateway.prompt import encode_raw, read_model_text
    from workers.model_dir import check_form, check_text_files, read_model_files

    for worker in config.workers:
        is_own = worker.model in builtin_models() or worker.model.startswith(DUMMY_PREFIX)
        path = None if worker.engine == TEXT_ENGINE or is_own else found(worker.model)
        if path is None:
            continue
        try:
            if worker.engine == "native":
                check_form(path)
            if not any((path / name).exists() for name in _MODEL_SIGNS):
                continue
            check_text_files(worker)
            text = read_model_text(read_model_files(path).files)
            encode_raw(text, _SAMPLE)
        except ConfigError as error:
            raise ConfigError(f"worker `{worker.name}`: {error}") from error
        yield from (f"worker `{worker.name}`: {remark}" for remark in text.remarks)


def missing_drafters(config: Config) -> Iterator[tuple[WorkerConfig, str]]:
    """Each worker whose drafter is not on this host, with one line."""
    for worker in config.workers:
        chosen = worker.drafting
        if chosen is None or chosen.drafter in (*INDEX_DRAFTERS, *builtin_drafters()):
            continue
        path = found(chosen.drafter)
        if (path is None or not path.is_dir()) and not is_hub_id(chosen.drafter):
            yield worker, f"worker `{worker.name}`: on this host {no_drafter(chosen.drafter)}"


def found(name: str) -> Path | None:
    """The file or directory of that name; None if it does not exist or is not accessible."""
    try:
        path = Path(name).expanduser()
        path.stat()
    except (OSError, RuntimeError):  # RuntimeError: `~user` of an unknown user
        return None
    return path


def known_model(model: str) -> tuple[str, str]:
    """The `model` of a worker for a word of the command line, and its name: the last part of a
    directory, a hub id itself, a built-in model without its prefix.
    """
    if f"{BUILTIN_PREFIX}{model}" in builtin_models():
        return f"{BUILTIN_PREFIX}{model}", model
    if model.startswith(BUILTIN_PREFIX):
        return model, model.removeprefix(BUILTIN_PREFIX)
    path = found(model)
    return (model, model) if path is None else (str(path.resolve()), path.resolve().name)
