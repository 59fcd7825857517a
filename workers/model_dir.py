"""The text files of a model's directory, and where the directories of built-in models are.

Owns the names of the files and the reading of their JSON. Must not import torch: the
supervisor and the engines without weights read them too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

from config import (
    BUILTIN_PREFIX,
    DUMMY_PREFIX,
    EXTERNAL_ENGINES,
    INDEX_DRAFTERS,
    TEXT_ENGINE,
    WorkerConfig,
    builtin_drafters,
    builtin_models,
    is_hub_id,
    no_builtin,
    no_drafter,
    no_model,
)
from protocol.errors import ConfigError
from protocol.files_digest import files_digest
from protocol.ids import ID_BYTES

CONFIG_NAME: Final = "config.json"
GENERATION_NAME: Final = "generation_config.json"
TOKENIZER_NAME: Final = "tokenizer.json"
TOKENIZER_CONFIG_NAME: Final = "tokenizer_config.json"
POOLING_NAME: Final = "1_Pooling/config.json"
"""The file in which sentence-transformers describes the pooling of a model that is made for
embeddings.
"""

_TEKKEN_NAME: Final = "tekken.json"
_ADAPTER_NAME: Final = "adapter_config.json"
_MAX_ID: Final = 2**32 - 1
_POINTER: Final = b"version https://git-lfs"
_OTHER_WEIGHTS: Final = {
    "pytorch_model*.bin": "PyTorch's pickles, which can run code",
    "consolidated*": "Mistral's or Meta's own form",
}

MODEL_FILES: Final = (
    "additional_chat_templates/tool_use.jinja",
    "chat_template.jinja",
    "chat_template.json",
    CONFIG_NAME,
    GENERATION_NAME,
    "special_tokens_map.json",
    TOKENIZER_NAME,
    TOKENIZER_CONFIG_NAME,
)
"""The files of a model's directory that a gateway needs."""

MAX_MODEL_FILES_BYTES: Final = 32 * 2**20


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Contents by name, and their digest."""

    digest: bytes
    files: dict[str, bytes]


NO_FILES: Final = ModelFiles(bytes(ID_BYTES), {})
"""No files. A text-level engine has none, because the gateway does not need its tokenizer."""


def read_model_files(model_dir: Path) -> ModelFiles:
    """The files of `MODEL_FILES` that `model_dir` has. Blocks: call it in a thread.

    Raises `ConfigError` for a missing tokenizer.json, unreadable files or more than 32 MiB.
    """
    found: dict[str, bytes] = {}
    for name in MODEL_FILES:
        path = model_dir / name
        try:
            found[name] = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if TOKENIZER_NAME not in found:
        raise ConfigError(_no_tokenizer(model_dir))
    if (num_bytes := sum(map(len, found.values()))) > MAX_MODEL_FILES_BYTES:
        raise ConfigError(
            f"the text files in {model_dir} have {num_bytes} bytes; "
            f"{MAX_MODEL_FILES_BYTES} are the limit"
        )
    return ModelFiles(files_digest(found), found)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `ConfigError` if there is none."""
    data = b""
    try:
        data = path.read_bytes()
        # Bare Infinity and NaN are read too, which Python's json writes for limits that are none.
        value = json.loads(data.decode("utf-8-sig"))
    except FileNotFoundError:
        if (other := other_form(path.parent)) is not None:
            raise ConfigError(other.error(path.parent)) from None
        raise ConfigError(f"{path} does not exist: give a complete model directory") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if is_pointer(data):
            raise ConfigError(pointer_text(path)) from None
        raise ConfigError(f"{path} is not readable JSON ({error}): fetch it again") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no JSON object: fetch it again")
    return value


def is_pointer(head: bytes) -> bool:
    """Whether a file with this beginning is the pointer that git leaves in the place of a large
    file.
    """
    return head.startswith(_POINTER)


def pointer_text(path: Path) -> str:
    """The error text for a file that is such a pointer."""
    return f"{path} is a pointer of git-lfs, not the file: run git lfs pull"


class OtherForm(NamedTuple):
    """What a directory holds instead of a model's safetensors files, and what to do about it."""

    what: str
    remedy: str

    def error(self, model_dir: Path) -> str:
        """What the directory holds and the remedy, in one line."""
        return f"{model_dir} {self.what}: {self.remedy}"


def other_form(model_dir: Path) -> OtherForm | None:
    """The other form in a directory; None if nothing known is in it, or if it has a model's
    safetensors. Raises `ConfigError` for an adapter's configuration that is not readable.
    """
    if any(model_dir.glob("model*.safetensors")):
        return None
    if any(model_dir.glob("*.gguf")):
        return OtherForm(
            "holds GGUF files and no safetensors",
            'serve it with engine = "llama-cpp", or take the safetensors files of the model',
        )
    if (model_dir / _ADAPTER_NAME).is_file():
        base = read_json(model_dir / _ADAPTER_NAME).get("base_model_name_or_path", "its base model")
        what = f"holds an adapter for {base}, not a model"
        return OtherForm(what, "merge both, and take that")
    for pattern, maker in _OTHER_WEIGHTS.items():
        if any(model_dir.glob(pattern)):
            return OtherForm(
                f"holds {pattern} ({maker}) and no model.safetensors",
                "take the safetensors files that transformers writes",
            )
    if (model_dir / CONFIG_NAME).exists():
        return None
    return _of_models([path.parent for path in model_dir.glob(f"*/{CONFIG_NAME}")]) or _of_models(
        [path.parent for path in model_dir.glob(f"snapshots/*/{CONFIG_NAME}")]
    )


def _of_models(inner: list[Path]) -> OtherForm | None:
    """A directory of models, or of a model's versions as the hub's cache has them."""
    inner.sort()
    if not inner:
        return None
    if len(inner) == 1:
        what = f"has no {CONFIG_NAME}, but {inner[0].name} in it has"
        return OtherForm(what, f"give {inner[0]}")
    what = f"has no {CONFIG_NAME}, but {len(inner)} directories in it have"
    return OtherForm(what, f"give one of them, as {inner[0]}")


def check_form(model_dir: Path) -> None:
    """Raise `ConfigError` for a directory whose weights are in another form."""
    if (other := other_form(model_dir)) is not None:
        raise ConfigError(other.error(model_dir))


def check_text_files(config: WorkerConfig) -> None:
    """Raise `ConfigError` for a local model of a native engine whose text files gateways cannot
    use: the model must not be loaded before this is found. Files on a hub are not checked.
    """
    if config.engine != "native" or config.model.startswith(DUMMY_PREFIX):
        return
    model_dir = local_dir(config.model)
    if model_dir is None or not model_dir.is_dir():
        return
    read_json(model_dir / CONFIG_NAME)
    path = model_dir / TOKENIZER_NAME
    if not path.exists():
        raise ConfigError(_no_tokenizer(model_dir))
    with path.open("rb") as file:
        if is_pointer(file.read(len(_POINTER))):
            raise ConfigError(pointer_text(path))
    for name in MODEL_FILES:
        if name.endswith(".json") and (model_dir / name).exists():
            read_json(model_dir / name)


def _no_tokenizer(model_dir: Path) -> str:
    """Tried with transformers 5.23 and mistral-common 1.13; `AutoTokenizer` writes no
    tokenizer.json of such a directory, and without the names of its tokens no answer would end.
    """
    if (model_dir / _TEKKEN_NAME).exists():
        return (
            f"{model_dir} has {_TEKKEN_NAME} and no {TOKENIZER_NAME}: write it with pip install "
            'transformers mistral-common and python -c "from transformers import '
            f"PreTrainedTokenizerFast as T; T.from_pretrained('{model_dir}', bos_token='<s>', "
            f"eos_token='</s>').save_pretrained('{model_dir}')\", and copy chat_template.jinja "
            "from the model's source"
        )
    return (
        f"{model_dir} has no {TOKENIZER_NAME}, without which gateways cannot tokenise for it: "
        "copy it from the model's source, or write it with AutoTokenizer.save_pretrained"
    )


def read_vocab_size(model_dir: Path) -> int | None:
    """The number of ids that the model can embed, if its config.json says so; models with a tower
    say it in the table of their text model.
    """
    for table in _tables(read_json(model_dir / CONFIG_NAME)):
        size = table.get("vocab_size")
        if isinstance(size, int) and size > 0:
            return size
    return None


def read_eos_ids(model_dir: Path) -> tuple[int, ...]:
    """The ids that end an answer, the usual one first: the ids in generation_config.json, else in
    config.json, then the tokenizer's own; empty if no file names one. -1 in a file means no id.
    Raises `ConfigError`.
    """
    path = model_dir / GENERATION_NAME
    ids = _stated_ids(path, read_json(path)) if path.exists() else ()
    if not ids:
        path = model_dir / CONFIG_NAME
        found = (_stated_ids(path, table) for table in _tables(read_json(path)))
        ids = next((each for each in found if each), ())
    own = _tokenizers_end(model_dir)
    return ids if own is None or own in ids else (*ids, own)


def _stated_ids(path: Path, table: Mapping[str, Any]) -> tuple[int, ...]:
    value = table.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token_id) is int and -1 <= token_id <= _MAX_ID for token_id in ids):
        raise ConfigError(f"{path}: eos_token_id is {value!r}, not one or several token ids")
    return tuple([token_id for token_id in ids if token_id >= 0])


def _tokenizers_end(model_dir: Path) -> int | None:
    """The id of the token that the tokenizer's config names as the end of a text."""
    path = model_dir / TOKENIZER_CONFIG_NAME
    if not path.exists():
        return None
    config = read_json(path)
    token = config.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        return None
    for token_id, entry in _table(config.get("added_tokens_decoder")).items():
        if _table(entry).get("content") == text and token_id.isdecimal():
            return int(token_id)
    if not (model_dir / TOKENIZER_NAME).exists():
        return None
    tokenizer = read_json(model_dir / TOKENIZER_NAME)
    added = tokenizer.get("added_tokens")
    for entry in map(_table, added if isinstance(added, list) else ()):
        if entry.get("content") == text and type(entry.get("id")) is int:
            return int(entry["id"])
    found = _table(_table(tokenizer.get("model")).get("vocab")).get(text)
    return found if isinstance(found, int) else None


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tables(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """A config.json's own keys, then those of its text model."""
    text = raw.get("text_config")
    return [raw, text] if isinstance(text, dict) else [raw]


def drafter_dir(drafter: str) -> Path | None:
    """Like `local_dir`, for a drafter."""
    if (found := builtin_drafters().get(drafter)) is not None:
        return found
    path = Path(drafter).expanduser()
    if path.is_dir():
        return path.resolve()
    if is_hub_id(drafter):
        return None
    raise ConfigError(no_drafter(drafter))


def local_dir(model: str) -> Path | None:
    """The directory of a built-in model, a dummy's shape or a path; None for the id of a model of
    the hub. Raises `ConfigError` for anything else.
    """
    if model.startswith(BUILTIN_PREFIX):
        return builtin_dir(model)
    if model.startswith(DUMMY_PREFIX):
        return dummy_dir(model)
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_file():
        raise ConfigError(file_model(path))
    if is_hub_id(model):
        return None
    raise ConfigError(no_model(model))


def file_model(path: Path) -> str:
    """The error for a `model` that is a file."""
    if path.suffix == ".gguf":
        return (
            f'{path} is a GGUF file: serve it with engine = "llama-cpp", or take the directory '
            "with the safetensors files of the model"
        )
    return f"{path} is a file: name the directory in which it lies"


def builtin_dir(model: str) -> Path:
    """The directory of a name such as `builtin:herma-tiny`. Raises `ConfigError` for others."""
    if (found := builtin_models().get(model)) is None:
        raise ConfigError(no_builtin(model))
    return found


def engine_model_dir(config: WorkerConfig) -> Path:
    """The directory of `config.model` for an engine that has no hub. Raises `ConfigError`."""
    if config.model.startswith(BUILTIN_PREFIX):
        return builtin_dir(config.model)
    path = Path(config.model).expanduser()
    if not path.is_dir():
        if config.engine in EXTERNAL_ENGINES and is_hub_id(config.model):
            return hub_text_files(config.model)
        raise ConfigError(
            f"worker `{config.name}`: model {config.model} is no directory; the {config.engine} "
            "engine needs one with tokenizer.json and config.json, a hub id, or "
            f"{BUILTIN_PREFIX}NAME"
        )
    return path


def hub_text_files(model_id: str) -> Path:
    """The directory with the text files of the hub's model `model_id`, never its weights: from the
    hub's cache on this host, else fetched. Blocks. Raises `ConfigError`.
    """
    from workers.hub import cached, fetch  # noqa: PLC0415 -- most models have a directory

    found = cached(model_id, MODEL_FILES)
    if found is None or not (found / TOKENIZER_NAME).exists():
        found = fetch(model_id, MODEL_FILES)
    if not (found / TOKENIZER_NAME).exists():
        raise ConfigError(f"{model_id} has no {TOKENIZER_NAME} on the hub: give a local directory")
    return found


def check_dirs(config: WorkerConfig) -> None:
    """Raise `ConfigError`, as the engine would, for a model or drafter that this host lacks; what a
    hub has is not asked for.
    """
    if config.engine == TEXT_ENGINE:
        return
    if config.engine != "native":
        is_of_hub = config.engine in EXTERNAL_ENGINES and is_hub_id(config.model)
        if not is_of_hub or Path(config.model).expanduser().is_dir():
            engine_model_dir(config)
        return
    chosen = config.drafting
    found = [local_dir(config.model)]
    if chosen is not None and chosen.drafter not in INDEX_DRAFTERS:
        found.append(drafter_dir(chosen.drafter))
    for path in found:
        if path is not None:
            read_json(path / CONFIG_NAME)


def dummy_names() -> list[str]:
    """The shapes of dummy models that are installed, smallest first."""
    home = Path(str(files("config") / "dummy"))
    names = [path.name for path in home.iterdir() if path.is_dir()]
    return sorted(names, key=_billions)


def _billions(name: str) -> float:
    """The billions of weights in a shape's name: of a mixture all of them. The "e" of Gemma's E4B
    leaves out the embeddings of layers.
    """
    parts = [part for part in name.split("-") if part.endswith("b")]
    return float(parts[0][:-1].removeprefix("e"))


def dummy_dir(model: str) -> Path:
    """The directory whose config.json is the shape of `dummy:qwen3-8b` (installed with Herma) or
    `dummy:DIR`. Raises `ConfigError`.
    """
    name = model.removeprefix(DUMMY_PREFIX)
    if name in dummy_names():
        return Path(str(files("config") / "dummy" / name))
    path = Path(name).expanduser()
    if (path / CONFIG_NAME).is_file():
        return path.resolve()
    known = ", ".join(f"{DUMMY_PREFIX}{each}" for each in dummy_names())
    raise ConfigError(f"model {model!r} is neither a directory with {CONFIG_NAME} nor of {known}")
