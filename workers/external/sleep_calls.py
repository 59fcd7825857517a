"""How external engines are put to sleep over HTTP, and how they say whether they can sleep.

Owns the targets and fields of vLLM's sleep mode and of SGLang's memory saver. Must not know
sockets, nor when an engine sleeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from workers.external.engine_api import HttpRequest, json_object

_NOTHING: Final = b"{}"
_IS_SLEEPING: Final = "/is_sleeping"
_SERVER_INFO: Final = ("/server_info", "/get_server_info")


@final
class VllmSleep:
    """vLLM's sleep mode at level 1: the weights move to the host's memory, keys and values are
    forgotten. Its routes exist only with VLLM_SERVER_DEV_MODE=1 (vllm/entrypoints/serve/sleep).
    """

    name = "vLLM's sleep mode"
    targets = (_IS_SLEEPING,)
    sleep = HttpRequest("/sleep?level=1", b"")
    wake = HttpRequest("/wake_up", b"")

    def refusal(self, answers: Mapping[str, bytes]) -> str:
        if self.is_asleep(answers) is not None:
            return ""
        return (
            f"the server has no {_IS_SLEEPING}: start it with --enable-sleep-mode and with "
            "VLLM_SERVER_DEV_MODE=1 in its environment"
        )

    def is_asleep(self, answers: Mapping[str, bytes]) -> bool | None:
        said = json_object(answers, _IS_SLEEPING).get("is_sleeping")
        return said if isinstance(said, bool) else None


@final
class SglangSleep:
    """SGLang's memory saver. Without the backup the weights are random after they came back
    (sgl-project/sglang#6367), and without the saver itself the calls do nothing and answer 200.
    """

    name = "SGLang's memory saver"
    targets = _SERVER_INFO
    sleep = HttpRequest("/release_memory_occupation", _NOTHING)
    wake = HttpRequest("/resume_memory_occupation", _NOTHING)

    def refusal(self, answers: Mapping[str, bytes]) -> str:
        info = next((found for one in self.targets if (found := json_object(answers, one))), {})
        missing = [
            f"--{key.replace('_', '-')}"
            for key in ("enable_memory_saver", "enable_weights_cpu_backup")
            if info.get(key) is not True
        ]
        return f"start the server with {' and '.join(missing)}" if missing else ""

    def is_asleep(self, answers: Mapping[str, bytes]) -> bool | None:  # noqa: ARG002
        return None
