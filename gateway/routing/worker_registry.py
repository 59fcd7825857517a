"""The fleet: which models and workers there are, and which workers may join.

Owns the models by name (models of the configuration, and models that only workers name), the
workers by identity and by name, and the rules of joining. Must not know requests.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from config import FallbackConfig, ModelConfig, wildcard_of
from gateway.routing.admission_queue import AdmissionQueue, Waiting
from gateway.routing.breaker import Breaker
from gateway.routing.change_watch import ChangeWatch
from gateway.routing.conversations import ConversationHomes
from gateway.routing.diverted_requests import DivertedRequests
from gateway.routing.effects import RouteRequest
from gateway.routing.fair_shares import FairShares
from gateway.routing.fallback import Fallback
from gateway.routing.programs import Programs
from gateway.routing.trust import Trust
from gateway.routing.wait_forecast import WaitForecast
from gateway.routing.worker import Worker
from protocol.grammars import GrammarForm, forms_of
from protocol.ids import WorkerId
from protocol.messages import PROTOCOL_VERSION, SCORES_PROMPTS, Fault, Register, SpeedLoss

_NAMES_AT_MOST: Final = 64
_RECORDS_AT_MOST: Final = 1024

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


class WorkerRecord:
    """What is kept of a worker by its name, over its restarts. `left_at` is when it left without
    having given up, so that it may come back; `models` are those that it served then. `trust` is
    that in its engine of `epoch`, `speed_loss` what it has last reported, `changes` its sleeps and
    wakes.
    """

    __slots__ = (
        "breaker",
        "changes",
        "epoch",
        "left_at",
        "models",
        "speed_loss",
        "trust",
        "was_ready",
    )

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.was_ready = False
        self.models: tuple[str, ...] = ()
        self.left_at = float("-inf")
        self.epoch = -1
        self.trust = Trust()
        self.speed_loss: SpeedLoss | None = None
        self.changes = ChangeWatch()


class WorkerRegistry:
    """Registered workers. `models` is shared with `FleetState`."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._workers: dict[WorkerId, Worker] = {}
        self._records: dict[str, WorkerRecord] = {}
        # The ready workers by model, kept because workers change far more seldom than requests
        # come.
        self._ready: dict[str, tuple[Worker, ...]] = {}
        self._views: dict[str, ModelView] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, worker_id: WorkerId) -> Worker | None:
        """The worker of that identity, if it is registered."""
        return self._workers.get(worker_id)

    def put(self, worker: Worker) -> None:
        """Add a worker, or replace the one with the same identity."""
        self._workers[worker.worker_id] = worker
        record = self.record(worker)
        record.left_at = float("-inf")
        worker.breaker = record.breaker
        if record.epoch == worker.epoch:
            record.trust.rejoined()
        else:
            record.epoch, record.trust = worker.epoch, Trust()
        worker.trust = record.trust
        self._changed()

    def remove(self, worker_id: WorkerId, now: float) -> Worker | None:
        self._changed()
        worker = self._workers.pop(worker_id, None)
        if worker is not None and not worker.gave_up:
            record = self.record(worker)
            record.models, record.left_at = worker.models, now
        return worker

    def fail(self, worker: Worker, fault: Fault, now: float) -> None:
        worker.fail(fault, now)
        self._changed()

    def trust_changed(self) -> None:
        """The trust in a worker has changed: look again which ones are ready."""
        self._changed()

    def note_absence(self, worker: Worker, now: float, patience_s: float) -> None:
        """See `Worker.note_absence`."""
        was_absent = worker.is_absent
        worker.note_absence(now, patience_s)
        if worker.is_absent != was_absent:
            self._changed()

    def drain(self, worker: Worker) -> None:
        worker.draining = True
        self._changed()

    def record(self, worker: Worker) -> WorkerRecord:
        """The record of the worker, created if missing. If there are too many records, the oldest
        of workers that are gone are dropped.
        """
        record = self._records.pop(worker.name, None) or WorkerRecord()
        if len(self._records) >= _RECORDS_AT_MOST:
            here = {other.name for other in self._workers.values()}
            gone = [name for name in self._records if name not in here]
            for name in gone[: len(self._records) - _RECORDS_AT_MOST + 1]:
                del self._records[name]
        self._records[worker.name] = record
        return record

    def conflict(self, configs: Iterable[ModelConfig]) -> str | None:
        """See `Models.conflict`."""
        served = {name for worker in self._workers.values() for name in worker.models}
        return self._models.conflict(configs, served)

    def note_workerless(self, names: Container[str]) -> None:
        """See `Models.note_workerless`."""
        self._models.note_workerless(names)
        self._changed()

    def configure(self, configs: Iterable[ModelConfig], recovery_probes: int) -> None:
        """Apply these configurations. A model that they no longer name stays while workers serve it
        or requests wait for it.
        """
        self._models.configure(configs, recovery_probes)
        for model in self._models.brought():
            if not self.serving(model) and not model.queue.by_ticket:
                self._models.remove(model)
        self._changed()

    def serving(self, model: Model) -> list[Worker]:
        """All workers of the model, whatever their state."""
        return [worker for worker in self._workers.values() if model.name in worker.models]

    def ready(self, model: Model) -> tuple[Worker, ...]:
        """The workers of the model that take work."""
        if model.name not in self._ready:
            self._ready[model.name] = tuple(w for w in self.serving(model) if w.ready)
        return self._ready[model.name]

    def ready_ids(self, name: str) -> tuple[WorkerId, ...]:
        """The workers of the model of that name that take work."""
        model = self._models.named(name)
        return () if model is None else tuple(worker.worker_id for worker in self.ready(model))

    def judge_by_user(self, worker: Worker, *, is_well: bool) -> bool:
        """The worker has served a user's request, or has failed on it. Counts for all its models,
        which one engine serves. True if one of them is in fallback, which this may end.
        """
        is_any_away = False
        for name in worker.models:
            model = self._models.by_name.get(name)
            if model is not None and model.fallback.is_on:
                is_any_away = True
                model.fallback.judge_by_user(worker, self.ready(model), is_well=is_well)
        return is_any_away

    def starting(self, model: Model) -> list[Worker]:
        """The workers of the model whose engine is starting."""
        return [worker for worker in self.serving(model) if worker.state == "starting"]

    def is_coming(self, model: Model) -> bool:
        """Whether a worker of the model is starting, unproven, draining or asleep, and not absent:
        most draining workers come back with another engine, and the others leave within seconds.
        """
        return any(
            worker.state not in ("ready", "down") and not worker.is_absent
            for worker in self.serving(model)
        )

    def sleepers(self, model: Model) -> list[Worker]:
        """The workers of the model that are asleep, or on the way there or back, and that nothing
        keeps from waking.
        """
        return [w for w in self.serving(model) if w.is_asleep and not w.sleep_trouble]

    def note_diverted(self, model: Model, now: float) -> None:
        """A request of the model goes to a provider. While a worker of it sleeps the request counts
        as waiting, whatever keeps that worker from waking: else nothing would try that again.
        """
        if any(worker.is_asleep for worker in self.serving(model)):
            model.diverted.another(now)

    def is_absent(self, model: Model) -> bool:
        """Whether the model's only workers wait for attached engines that are away."""
        here = self.serving(model)
        return bool(here) and all(worker.is_absent for worker in here)

    def has_given_up(self, model: Model, now: float, patience_s: float) -> bool:
        """Whether all workers of the model have reported that they stop restarting, and none that
        left without such a report may come back within `patience_s`. False for a model without
        workers.
        """
        here = self.serving(model)
        if not here or any(worker.state != "down" for worker in here):
            return False
        since = now - patience_s
        return not any(
            record.left_at > since and model.name in record.models
            for record in self._records.values()
        )

    def refusal(self, worker_id: WorkerId, message: Register) -> str | None:
        """Why this worker may not join, and what to change; None if it may."""
        if message.protocol_version != PROTOCOL_VERSION:
            return (
                f"it speaks protocol {message.protocol_version}, this gateway speaks "
                f"{PROTOCOL_VERSION}; update the older side"
            )
        if not PRINTABLE.fullmatch(message.worker):
            return f"its name {message.worker!r} is not 1 to 128 characters without spaces"
        if len(message.models) > _NAMES_AT_MOST:
            return f"it serves more than {_NAMES_AT_MOST} models"
        for other in self._workers.values():
            if other.name == message.worker and other.worker_id != worker_id:
                return f"another live worker is called `{message.worker}`; names are unique"
        return self._models.refusal(message.models) or self._conflict(worker_id, message)

    def _conflict(self, worker_id: WorkerId, message: Register) -> str | None:
        engine = message.engine
        if engine is None:
            return None
        if not all((engine.max_seqs, engine.kv_tokens, engine.block_size, engine.context_length)):
            return "its engine reports no sequences, no KV space, no block size or no window"
        for other in self._workers.values():
            if other.worker_id == worker_id or other.engine is None:
                continue
            shared = next((name for name in message.models if name in other.models), None)
            if shared is None:
                continue
            if (other.engine.relay is None) != (engine.relay is None):
                return (
                    f"one of it and `{other.name}`, which serves `{shared}` too, takes tokens and "
                    "the other text; give one of them another model name"
                )
            if other.engine.files_digest != engine.files_digest:
                return (
                    f"its tokenizer and template files differ from those of `{other.name}`, which "
                    f"serves `{shared}` too; give one of them another model name"
                )
            if other.engine.block_size != engine.block_size:
                return (
                    f"its block size is {engine.block_size}, that of `{other.name}`, which serves "
                    f"`{shared}` too, is {other.engine.block_size}"
                )
        return None

    def refresh(self, model: Model) -> None:
        """Update the model's facts from its ready workers; without one, the last facts stay."""
        engines = [worker.engine for worker in self.ready(model) if worker.engine is not None]
        if engines:
            model.relays = engines[0].relay is not None
            model.files_digest = None if model.relays else engines[0].files_digest
            model.block_size = engines[0].block_size
            # Engines refuse what their whole cache cannot hold.
            model.context_length = min(min(e.context_length, e.kv_tokens) for e in engines)
            model.grammar_forms = frozenset.intersection(
                *(forms_of(engine.capabilities) for engine in engines)
            )
            model.embedding_size = min(e.embedding_size for e in engines)
            model.scores_prompts = all(SCORES_PROMPTS in e.capabilities for e in engines)
            self._views.pop(model.name, None)

    def forget_models(self, now: float, after_s: float) -> None:
        """Remove each model that only workers have named and that no worker has served, and no
        request has waited for, during `after_s`. A worker that vanishes is mostly back before.
        """
        for model in self._models.brought():
            if self.serving(model) or model.queue.by_ticket:
                model.unserved_since = None
            elif model.unserved_since is None:
                model.unserved_since = now
            if model.unserved_since is not None and now - model.unserved_since >= after_s:
                self._models.remove(model)
                self._changed()

    def find(self, name: str) -> ModelView | None:
        """The view of the model with that name or alias; None if there is none."""
        model = self._models.by_name.get(name) or self._models.named(name)
        return self.view(model) if model is not None else None

    def view(self, model: Model) -> ModelView:
        """The view of the model, from a cache while nothing has changed."""
        if model.name in self._views:
            view, is_on = self._views[model.name], model.fallback.is_on
            if view.queued == len(model.queue.by_ticket) and view.is_fallback_on == is_on:
                return view
        view = self._views[model.name] = self._look_at(model)
        return view

    def _changed(self) -> None:
        self._ready.clear()
        self._views.clear()

    def _look_at(self, model: Model) -> ModelView:
        ready = self.ready(model)
        return ModelView(
            name=model.name,
            aliases=model.config.aliases,
            owned_by=model.config.owned_by,
            context_length=model.context_length,
            state=self._state(model, ready),
            files_digest=model.files_digest,
            block_size=model.block_size,
            fallback=model.config.fallback,
            cloud=model.config.cloud == "allow",
            ready_workers=len(ready),
            queued=len(model.queue),
            is_fallback_on=model.fallback.is_on,
            is_providers_alone=model.is_providers_alone,
            grammar_forms=model.grammar_forms,
            embedding_size=model.embedding_size,
            scores_prompts=model.scores_prompts,
            relays=model.relays,
        )

    def _state(self, model: Model, ready: Sequence[Worker]) -> ModelState:
        if ready:
            return "ready"
        states = {worker.state for worker in self.serving(model) if not worker.is_absent}
        if "starting" in states:
            return "starting"
        if "waking" in states:
            return "waking"
        return "asleep" if states & {"asleep", "falling asleep"} else "down"
