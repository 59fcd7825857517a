"""The models of the fleet, by name and alias.

Owns the state of each model (models of the configuration, and models that only workers name), and
the view of a model for clients and turns. Must not know which workers serve a model, nor how a
request is placed.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final, Literal

import msgspec

from config import FallbackConfig, ModelConfig, wildcard_of
from gateway.routing.admission_queue import AdmissionQueue, Waiting
from gateway.routing.conversations import ConversationHomes
from gateway.routing.diverted_requests import DivertedRequests
from gateway.routing.effects import RouteRequest
from gateway.routing.fair_shares import FairShares
from gateway.routing.fallback import Fallback
from gateway.routing.programs import Programs
from gateway.routing.wait_forecast import WaitForecast
from protocol.grammars import GrammarForm

PRINTABLE: Final = re.compile(r"[!-~]{1,128}")
"""Names travel in response headers."""

ModelState = Literal["ready", "starting", "waking", "asleep", "down"]


class ModelView(msgspec.Struct, frozen=True):
    """A model as clients and turns see it. `context_length` (tokens) is the least of its ready
    workers, else the last known, else the configured one. `files_digest` and `block_size` are
    None until a worker was ready once. `grammar_forms` are those that all ready workers enforce,
    or, without one, those of the last. `embedding_size` is the length of its embeddings, 0 if its
    workers do not embed. `scores_prompts`: all ready workers give log-probabilities of prompts.
    `relays`: its workers are text-level engines, without a tokenizer. `is_refused`: limits of money
    keep its providers from answering, which only `with_refusals` sets. `is_providers_alone`: the
    file gives it no worker, and none has joined.
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
    grammar_forms: frozenset[GrammarForm] = frozenset()
    embedding_size: int = 0
    scores_prompts: bool = False
    relays: bool = False
    owned_by: str = "herma"
    is_refused: bool = False
    is_providers_alone: bool = False

    @property
    def has_only_providers(self) -> bool:
        """Whether no worker of the model was ever ready, nor is one starting."""
        is_without_workers = self.block_size is None and self.state == "down"
        return is_without_workers and self.cloud and bool(self.fallback)

    @property
    def is_away(self) -> bool:
        """Whether requests for the model go to its providers now, because no worker can serve. A
        model that sleeps is woken by them.
        """
        is_local = self.state in ("ready", "waking", "asleep") and not self.is_fallback_on
        return not is_local and self.cloud and bool(self.fallback) and not self.is_refused


def with_refusals(
    models: Iterable[ModelView], refuses: Callable[[tuple[FallbackConfig, ...]], bool]
) -> tuple[ModelView, ...]:
    """The models as operators see them. `refuses` tells whether limits of money keep all providers
    of a chain from answering: then no provider does, whatever the model's workers are.
    """
    return tuple(
        msgspec.structs.replace(model, is_refused=True)
        if model.is_away and refuses(model.fallback)
        else model
        for model in models
    )


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
        self._num_samples += 1
        num_weighed = self._num_samples + 1
        weight = 1 / num_weighed if num_weighed < _NUM_WEIGHED else _SMOOTHING
        self.value += weight * (sample - self.value)


class Model:
    """The state of one model; only `FleetState` writes it. Until `awaited_until` a worker that has
    vanished, or that a restarted gateway does not know yet, is expected to dial in again.
    `probation_ticket` is the ticket on probation that has a place. `unserved_since`: since when no
    worker serves the model and no request waits for one. `is_workerless`: the file has no worker
    for it.
    """

    def __init__(self, config: ModelConfig, recovery_probes: int = RECOVERY_PROBES) -> None:
        self.config = config
        self.name = config.name
        self.context_length = config.context_length
        self.files_digest: bytes | None = None
        self.grammar_forms = frozenset[GrammarForm]()
        self.embedding_size = 0
        self.scores_prompts = False
        self.relays = False
        self.block_size: int | None = None
        self.queue = AdmissionQueue()
        self.shares = FairShares()
        self.conversations = ConversationHomes()
        self.programs = Programs(self.shares.has_request)
        self.output_tokens = Average(PRIOR_OUTPUT_TOKENS)
        self.service_s = Average(PRIOR_SERVICE_S)
        self.forecast = WaitForecast()
        self.fallback = Fallback(config, recovery_probes)
        self.probation_ticket: int | None = None
        self.awaited_until = float("-inf")
        self.unserved_since: float | None = None
        self.diverted = DivertedRequests()
        self.is_workerless = False

    @property
    def is_providers_alone(self) -> bool:
        """Whether the file gives it no worker, and none has joined: no outage begins then."""
        return self.is_workerless and self.block_size is None

    def configure(self, config: ModelConfig, recovery_probes: int) -> None:
        """Apply a changed configuration. Facts that workers have reported stay."""
        self.config = config
        self.fallback.configure(config, recovery_probes)
        if self.block_size is None:
            self.context_length = config.context_length

    def expected_output(self, max_tokens: int) -> int:
        """An estimate of the tokens that a sequence will generate, from past sequences."""
        return max(1, min(max_tokens, round(self.output_tokens.value)))

    def waits_s(self, order: list[Waiting], now: float) -> Iterator[tuple[Waiting, float]]:
        """How long each of the waiting tickets, in their expected order, will probably wait."""
        for waiting, wait_s in self.forecast.waits_s(order, self.shares):
            yield waiting, max(wait_s, self.programs.wait_s(waiting.session, now))

    def chain(self, request: RouteRequest) -> tuple[FallbackConfig, ...]:
        """The providers that may answer this request, in order."""
        is_bound = request.resumed and not request.may_restart
        if is_bound or not request.cloud or self.config.cloud == "never":
            return ()
        return self.config.fallback


class Models:
    """All models. `by_name` has them by name and by alias, which the configuration keeps distinct.
    `_brought` has those that only workers have named.
    """

    def __init__(
        self, configs: Iterable[ModelConfig], recovery_probes: int = RECOVERY_PROBES
    ) -> None:
        self._models: dict[str, Model] = {}
        self._brought: dict[str, Model] = {}
        self._max_pause_s = 0.0
        self.configure(configs, recovery_probes)

    def configure(
        self, configs: Iterable[ModelConfig], recovery_probes: int = RECOVERY_PROBES
    ) -> None:
        """Apply these configurations; other models count as brought by workers from now on."""
        before, self._models = self._models, {}
        for config in configs:
            model = before.pop(config.name, None) or Model(config, recovery_probes)
            model.configure(config, recovery_probes)
            self._models[config.name] = model
        for name, model in before.items():
            model.configure(ModelConfig(name=name), recovery_probes)
            self._models[name] = model
        self._brought = before
        self._aliases: dict[str, str] = {
            alias: model.name for model in self._models.values() for alias in model.config.aliases
        }
        self.limit_pauses(self._max_pause_s)
        aliased = {alias: self._models[name] for alias, name in self._aliases.items()}
        self.by_name = {**self._models, **aliased}

    def note_workerless(self, names: Container[str]) -> None:
        """The models for which the file has no worker, but providers."""
        for model in self:
            model.is_workerless = model.name in names

    def limit_pauses(self, max_pause_s: float) -> None:
        """Set how long conversations may wait for those that are resident, in seconds."""
        self._max_pause_s = max_pause_s
        for model in self:
            model.programs.max_pause_s = max_pause_s

    def conflict(self, configs: Iterable[ModelConfig], served: Container[str]) -> str | None:
        """Why the configurations conflict with the names that workers serve now; None if they do
        not.
        """
        for config in configs:
            for alias in config.aliases:
                if alias in self._models and alias in served:
                    return (
                        f"alias `{alias}` of model `{config.name}` is the name of a model that a "
                        "worker serves; choose another"
                    )
        return None

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def named(self, name: str) -> Model | None:
        """The model with that name or alias, else one whose wildcard alias matches, else None."""
        if (model := self.by_name.get(name)) is not None:
            return model
        wildcard = wildcard_of(name, self._aliases)
        return self.by_name[wildcard] if wildcard is not None else None

    def refusal(self, names: tuple[str, ...]) -> str | None:
        """Why a worker may not serve models of these names; None if it may."""
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
                model.programs.max_pause_s = self._max_pause_s
                self._models[name] = self.by_name[name] = self._brought[name] = model

    def brought(self) -> tuple[Model, ...]:
        """The models that the configuration does not name."""
        return tuple(self._brought.values())

    def remove(self, model: Model) -> None:
        """Forget a model that the configuration does not name."""
        del self._brought[model.name], self._models[model.name], self.by_name[model.name]
