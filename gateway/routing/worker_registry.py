"""The workers of the fleet, and which workers may join.

Owns the workers by identity and by name, the rules of joining, and the state of a model that
follows from its workers. Must not know requests.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final

from config import ModelConfig
from gateway.routing.breaker import Breaker
from gateway.routing.change_watch import ChangeWatch
from gateway.routing.effects import Effect
from gateway.routing.models import PRINTABLE, Model, Models, ModelState, ModelView
from gateway.routing.trust import Trust
from gateway.routing.worker import Worker
from protocol.grammars import forms_of
from protocol.ids import WorkerId
from protocol.messages import PROTOCOL_VERSION, SCORES_PROMPTS, Fault, Register, SpeedLoss

_NAMES_AT_MOST: Final = 64
_RECORDS_AT_MOST: Final = 1024


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

    def step_fallback(self, model: Model, ready: Sequence[Worker], now: float) -> list[Effect]:
        """The effects of one step of the model's fallback. Sleeping workers matter only while the
        fallback is on.
        """
        is_asleep = model.fallback.is_on and bool(self.sleepers(model))
        return model.fallback.step(ready, now, is_asleep=is_asleep)

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
