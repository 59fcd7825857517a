"""Public model names, their aliases and what is known about each.

Owns the names: those of the configuration and those that workers bring. Must not know who runs
what at the moment: `fleet.py` does.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

import msgspec

from config import FallbackConfig, ModelConfig
from gateway.routing.admission_queue import AdmissionQueue
from gateway.routing.conversations import Conversations
from gateway.routing.effects import RouteRequest
from gateway.routing.fair_shares import FairShares
from gateway.routing.fallback import Fallback

PRINTABLE: Final = re.compile(r"[!-~]{1,128}")
"""Names travel in response headers."""

ModelState = Literal["ready", "starting", "down"]


class ModelView(msgspec.Struct, frozen=True):
    """A model as clients and turns see it. `context_length` (tokens) is the least of the ready
    workers, else the last known, else the configured one. `files_digest` and `block_size` are
    None until a worker was ready once.
    """

    name: str
    aliases: tuple[str, ...]
    context_length: int | None
    state: ModelState
    files_digest: bytes | None
    block_size: int | None
    fallback: tuple[FallbackConfig, ...]
    cloud: bool
    ready_workers: int = 0
    queued: int = 0
    is_fallback_on: bool = False

    @property
    def is_away(self) -> bool:
        """Whether its providers answer for it now."""
        is_local = self.state == "ready" and not self.is_fallback_on
        return not is_local and self.cloud and bool(self.fallback)


PRIOR_OUTPUT_TOKENS: Final = 512
PRIOR_SERVICE_S: Final = 5.0
RECOVERY_PROBES: Final = 3
_SMOOTHING: Final = 0.1
_NUM_WEIGHED: Final = 10


class Average:
    """An exponential moving average that starts at a prior; the first ten samples weigh more."""

    __slots__ = ("_num_samples", "value")

    def __init__(self, prior: float) -> None:
        self.value = prior
        self._num_samples = 0

    def add(self, sample: float) -> None:
        """Take in one sample."""
        self._num_samples += 1
        num_weighed = self._num_samples + 1
        weight = 1 / num_weighed if num_weighed < _NUM_WEIGHED else _SMOOTHING
        self.value += weight * (sample - self.value)


class Model:
    """Mutable; written by `Dispatch` only. Until `awaited_until` a worker that has vanished, or
    that a restarted gateway does not know yet, is expected to dial in again. `trial` is the ticket
    of the one suspect that has a place. `unserved_since`: no worker has served it, and nobody has
    waited for one.
    """

    def __init__(self, config: ModelConfig, recovery_probes: int = RECOVERY_PROBES) -> None:
        self.config = config
        self.name = config.name
        self.context_length = config.context_length
        self.files_digest: bytes | None = None
        self.block_size: int | None = None
        self.queue = AdmissionQueue()
        self.shares = FairShares()
        self.conversations = Conversations()
        self.output_tokens = Average(PRIOR_OUTPUT_TOKENS)
        self.service_s = Average(PRIOR_SERVICE_S)
        self.fallback = Fallback(config, recovery_probes)
        self.trial: int | None = None
        self.awaited_until = float("-inf")
        self.unserved_since: float | None = None

    def expected_output(self, max_tokens: int) -> int:
        """How many tokens a sequence will generate, as far as past ones tell."""
        return max(1, min(max_tokens, round(self.output_tokens.value)))

    def chain(self, request: RouteRequest) -> tuple[FallbackConfig, ...]:
        """The providers that may answer this request, in order."""
        if request.resumed or not request.cloud or self.config.cloud == "never":
            return ()
        return self.config.fallback


class Models:
    """The names. Configuration has checked its own for collisions."""

    def __init__(
        self, configs: Iterable[ModelConfig], recovery_probes: int = RECOVERY_PROBES
    ) -> None:
        self._models: dict[str, Model] = {
            config.name: Model(config, recovery_probes) for config in configs
        }
        self._aliases: dict[str, str] = {
            alias: model.name for model in self._models.values() for alias in model.config.aliases
        }
        self._brought: dict[str, Model] = {}
        aliased = {alias: self._models[name] for alias, name in self._aliases.items()}
        self._by_name = {**self._models, **aliased}
        self.find: Final[Callable[[str], Model | None]] = self._by_name.get
        """The model of that name or alias."""

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def refusal(self, names: tuple[str, ...]) -> str | None:
        """Why a worker may not bring models of these names, if so."""
        if not names:
            return "it serves no model"
        for name in names:
            if name in self._aliases:
                return (
                    f"its model name `{name}` is an alias of `{self._aliases[name]}`; "
                    "serve that name or remove the alias from the configuration"
                )
            if not PRINTABLE.fullmatch(name):
                return f"its model name {name!r} is not 1 to 128 characters without spaces"
        return None

    def add(self, names: tuple[str, ...]) -> None:
        """Create the models that the configuration does not name."""
        for name in names:
            if name not in self._models:
                model = Model(ModelConfig(name=name))
                self._models[name] = self._by_name[name] = self._brought[name] = model

    def brought(self) -> tuple[Model, ...]:
        """Those that the configuration does not name."""
        return tuple(self._brought.values())

    def remove(self, model: Model) -> None:
        """A model that workers brought is none any more."""
        del self._brought[model.name], self._models[model.name], self._by_name[model.name]
