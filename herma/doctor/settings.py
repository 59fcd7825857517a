"""Checks for settings that silently cost speed.

Owns the list of arguments and variables of external engines that are known to be slow or to break,
with their measured cost if it is known. Must not judge what only differs from a default.
"""

import json
from collections.abc import Iterator
from typing import Final

from config import Config, LaunchConfig
from herma.doctor.finding import Finding
from herma.doctor.host import Host

CHECK: Final = "settings"

_SLOW_FLAGS: Final = {
    "--enforce-eager": "without CUDA graphs decoding takes up to 1.8 times as long (25 instead of "
    "44 tokens/s on two GB10 hosts)",
    "--disable-cuda-graph": "without CUDA graphs decoding takes up to 1.8 times as long",
    "--no-enable-prefix-caching": "each turn of an agent computes its whole prompt again",
    "--disable-radix-cache": "each turn of an agent computes its whole prompt again",
    "--no-enable-chunked-prefill": "a long prompt holds up every answer in progress",
}
_FEW_TOKENS: Final = 8192
_PREFILL_FLAGS: Final = ("--max-num-batched-tokens", "--chunked-prefill-size")
_VARIABLES: Final = {
    ("OMP_NUM_THREADS", "1"): "one thread prepares each step on the CPU; 8 is usual",
    ("VLLM_WORKER_MULTIPROC_METHOD", "fork"): "a fork after CUDA was used fails with errors that "
    "look like bugs of the engine",
}


def check_settings(host: Host, config: Config) -> Iterator[Finding]:
    """Check the command line and environment of each launched engine."""
    for worker in config.workers:
        if worker.launch is None:
            continue
        name = f"worker `{worker.name}`"
        yield from _check_flags(name, worker.launch)
        yield from _check_json(name, worker.launch)
        environ = {**host.environ, **worker.launch.env}
        for (variable, value), why in _VARIABLES.items():
            if environ.get(variable) == value:
                what = f"{name}: {variable}={value}"
                remedy = f"remove it, or set another value in launch.env of {name}"
                yield Finding("warning", CHECK, what, why, remedy)


def _check_flags(name: str, launch: LaunchConfig) -> Iterator[Finding]:
    for flag, why in _SLOW_FLAGS.items():
        if flag in launch.argv:
            remedy = f"remove {flag} from launch.argv"
            yield Finding("warning", CHECK, f"{name}: {flag} is set", why, remedy)
    for flag in _PREFILL_FLAGS:
        value = _value_of(launch.argv, flag)
        if value.isdigit() and int(value) < _FEW_TOKENS:
            yield Finding(
                "warning",
                CHECK,
                f"{name}: {flag} is {value}",
                f"with less than {_FEW_TOKENS} tokens per step long prompts take more steps",
                f"set {flag} to {_FEW_TOKENS} or more",
            )


def _check_json(name: str, launch: LaunchConfig) -> Iterator[Finding]:
    """Find a JSON argument whose quotes a shell has removed: the engine then uses its default."""
    for word in launch.argv:
        text = word.partition("=")[2] if word.startswith("--") else word
        if not (text.startswith("{") and text.endswith("}")):
            continue
        try:
            json.loads(text)
        except ValueError:
            yield Finding(
                "error",
                CHECK,
                f"{name}: {text} is no JSON",
                "a shell removed its quotes; engines use their default then, without a word",
                'write it as one word of launch.argv: \'{"key": "value"}\'',
            )


def _value_of(argv: tuple[str, ...], flag: str) -> str:
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return ""
