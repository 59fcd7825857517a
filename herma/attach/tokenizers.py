"""Where the tokenizer of a served model is on this host.

Owns the search. With a tokenizer the gateway sends token ids to the engine; without one, text.
"""

from pathlib import Path

from config import is_hub_id
from protocol.errors import ConfigError
from workers.model_dir import TOKENIZER_NAME, hub_text_files


def tokenizer_of(source: str | None) -> tuple[str | None, str]:
    """The `model` key for a token-level worker whose engine has loaded `source`, a directory or a
    hub id, and words for people. The key is None if this host can get no tokenizer for it.
    """
    if source is None:
        return None, "the server does not say where its model is from"
    path = Path(source).expanduser()
    if path.is_dir():
        if (path / TOKENIZER_NAME).is_file():
            return str(path), f"tokenizer of {path}"
        return None, f"{path} has no {TOKENIZER_NAME}"
    if not is_hub_id(source):
        return None, f"{source} is not a directory of this host"
    try:
        hub_text_files(source)
    except ConfigError as error:
        return None, str(error)
    return source, f"tokenizer of {source}, from the hub's cache"
