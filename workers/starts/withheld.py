"""Decides which values of variables and arguments are recorded.

Owns the allow list of variables and the names whose values are secrets. A secret never leaves the
process, not even as a hash.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from housekeeping.log_lines import FORMAT_VARIABLE, LEVEL_VARIABLE

WITHHELD: Final = "(not recorded)"

_ALLOWED: Final = ("CUDA_", "NVIDIA_", "NCCL_", "VLLM_", "OMP_", "HERMA_")
_ALLOWED_NAMES: Final = ("LD_PRELOAD",)
_NOT_OF_THE_START: Final = ("HERMA_RUNTIME_DIR", FORMAT_VARIABLE, LEVEL_VARIABLE)
"""Directories of sockets, which change with each session of a user, and the form of the log, which
is another on a terminal.
"""

_SHOWN: Final = (
    *_ALLOWED,
    "SGLANG_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "HF_HUB_", "HF_HOME", "RAY_",
    "GGML_", "LLAMA_", "HIP_", "ROCR_", "HSA_", "MKL_", "KMP_", "PYTHON", "LD_LIBRARY_PATH",
)  # fmt: skip
"""Variables of a launch whose values are recorded; of any other only that it is there."""

_SECRET: Final = re.compile(
    r"key|secret|passw|pwd|passphrase|credential|cookie|auth|token(?!izer)", re.IGNORECASE
)
_HEADER_FLAGS: Final = frozenset({"-H", "--header", "--headers", "--proxy-header"})
_ENV_FLAGS: Final = frozenset({"-e", "--env", "--setenv"})
_HEADER: Final = re.compile(r"(?P<name>[A-Za-z][\w-]*):\s*\S.*", re.DOTALL)
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]*")
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
    """All variables; the values only of those that are known to be no secrets."""
    return {
        name: _cleaned(environ[name]) if _is_shown(name) else WITHHELD for name in sorted(environ)
    }


def _is_shown(variable: str) -> bool:
    is_known = variable.startswith(_SHOWN) or variable in _ALLOWED_NAMES
    return is_known and not is_secret(variable)


def recorded_words(words: Iterable[str]) -> tuple[str, ...]:
    """A command line without the values of secrets: `--api-key X`, `--api-key=X`, `-e NAME=X` of a
    variable that is not known to be harmless, headers (`-H "X-Auth: X"`), and fields of JSON
    arguments.
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
        if equals and name in _ENV_FLAGS:
            (variable,) = recorded_words([word[len(name) + 1 :]])
            yield f"{name}={variable}"
            continue
        is_flag = word.startswith("-")
        is_header = _HEADER.fullmatch(word)
        follows_secret = is_flag and not equals and (is_secret(name) or name in _HEADER_FLAGS)
        is_pair = bool(equals) and " " not in name and "{" not in name
        if is_pair and (is_secret(name) or name in _HEADER_FLAGS or _is_hidden(name)):
            yield f"{name}={WITHHELD}"
        elif is_header is not None and is_secret(is_header["name"]):
            yield f"{is_header['name']}: {WITHHELD}"
        else:
            yield _cleaned(word)


def _is_hidden(name: str) -> bool:
    """Whether `name` of NAME=value is a variable, as of `env` or a container, that is not shown."""
    return _VARIABLE.fullmatch(name) is not None and not _is_shown(name)


def _cleaned(text: str) -> str:
    text = _IN_JSON.sub(
        lambda found: f'{found[1]}"{WITHHELD}"' if is_secret(found["name"]) else found[0], text
    )
    return _IN_URL.sub(WITHHELD, _BEARER.sub(rf"\1 {WITHHELD}", text))
