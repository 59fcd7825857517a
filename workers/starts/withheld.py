"""Decides which values of variables and arguments are recorded.

Owns the allow list of variables and the names whose values are secrets. A secret never leaves the
process, not even as a hash.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

WITHHELD: Final = "(not recorded)"

_ALLOWED: Final = ("CUDA_", "NVIDIA_", "NCCL_", "VLLM_", "OMP_", "HERMA_")
_ALLOWED_NAMES: Final = ("LD_PRELOAD",)
_NOT_OF_THE_START: Final = ("HERMA_RUNTIME_DIR",)
"""Directories of sockets, which change with each session of a user."""

_SECRET: Final = re.compile(r"key|secret|passw|credential|auth|token(?!izer)", re.IGNORECASE)
_COUNT: Final = re.compile(r"^--?[\w-]*tokens$")
"""Counts of tokens, such as `--max-num-batched-tokens`, are no secrets."""
_IN_JSON: Final = re.compile(r'("(?P<name>[^"]*)"\s*:\s*)"(?:[^"\\]|\\.)*"')
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+\S+")
_IN_URL: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def is_secret(name: str) -> bool:
    """Whether a variable or argument of that name contains a secret."""
    return _SECRET.search(name) is not None and _COUNT.match(name) is None


def allowed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that belong to a start."""
    return recorded_variables(
        {
            name: value
            for name, value in environ.items()
            if (name.startswith(_ALLOWED) or name in _ALLOWED_NAMES)
            and name not in _NOT_OF_THE_START
        }
    )


def recorded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """All variables; those with secrets without their values."""
    return {
        name: WITHHELD if is_secret(name) else _cleaned(environ[name]) for name in sorted(environ)
    }


def recorded_words(words: Iterable[str]) -> tuple[str, ...]:
    """A command line without the values of secrets: `--api-key X`, `--api-key=X`, `-e TOKEN=X`, and
    fields of JSON arguments.
    """
    return tuple(_recorded(words))


def _recorded(words: Iterable[str]) -> Iterator[str]:
    follows_secret = False
    for word in words:
        name, equals, _ = word.partition("=")
        if follows_secret and not word.startswith("-"):
            yield WITHHELD
            follows_secret = False
            continue
        is_flag = word.startswith("-")
        follows_secret = is_flag and not equals and is_secret(name)
        is_pair = bool(equals) and " " not in name and "{" not in name
        yield f"{name}={WITHHELD}" if is_pair and is_secret(name) else _cleaned(word)


def _cleaned(text: str) -> str:
    text = _IN_JSON.sub(
        lambda found: f'{found[1]}"{WITHHELD}"' if is_secret(found["name"]) else found[0], text
    )
    return _IN_URL.sub(WITHHELD, _BEARER.sub(rf"\1 {WITHHELD}", text))
