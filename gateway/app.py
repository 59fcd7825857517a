"""The gateway process: composition root.

Owns how the parts are built, the root nursery, and the start and stop of the process. Must not
decide anything about requests.
"""

import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import trio

from config import (
    Config,
    GatewayConfig,
    audit_path,
    make_place,
    provider_api_key,
    providers_alone,
)
from gateway import upstream
from gateway.alerts import Alerting
from gateway.api import Signer
from gateway.api.alias_params import check_aliases
from gateway.api.errors import ApiError
from gateway.dashboard import Dashboard, Siblings
from gateway.gateway_index import ALONE, GatewayIndex
from gateway.http import (
    Certificates,
    Edge,
    EdgeSettings,
    FleetGauges,
    edge_app,
    serve,
    write_batch,
)
from gateway.link.model_files import ModelTexts
from gateway.link.worker_link import WorkerLink
from gateway.output import AUTO
from gateway.output.tools import detect_tool_format, is_known_format
from gateway.prompt import ModelText
from gateway.reload import Reload
from gateway.responses import stored_responses
from gateway.routing.dispatcher import Dispatcher
from gateway.routing.fleet_state import FleetState
from gateway.routing.worker_view import WorkerView
from gateway.runtime import return_memory, use_huge_pages
from gateway.signing_key import signing_key
from gateway.spending.spending import Spending
from gateway.telemetry import (
    AuditTrail,
    CallsUnknown,
    ProcessReplaced,
    RequestTraces,
    SpanExport,
    log_request,
)
from gateway.telemetry.counters import GatewayCounters
from gateway.telemetry.event_feed import EventFeed
from gateway.turn import (
    ConversationTracker,
    HealthProbes,
    OpenTurns,
    ProviderHealth,
    RetryBudget,
    Services,
    answer_request,
    known_text,
    pass_through,
    preview_route,
    prompt_room,
    read_model_prompts,
)
from housekeeping.audit import Act
from housekeeping.process_start import FIRST, ProcessStart
from housekeeping.service_manager import ServiceManager
from housekeeping.signals import graceful_stop
from protocol.addresses import is_local_address
from protocol.control_messages import (
    GATEWAY_SOCKET,
    Answer,
    Ask,
    AskOverview,
    AskReload,
    AskRequest,
    AskStatus,
    GatewayStatus,
    ModelCover,
    Shown,
)
from protocol.errors import ConfigError
from protocol.ids import ID_BYTES
from protocol.transport import ControlSocket, CurveServer, is_local, load_curve_server
from protocol.version import VERSION

CUT_AT: Final = 0.9
"""Open answers are cut after this share of `drain_s`; the rest is for sending clients the error."""

MAX_CAUSES: Final = 3
"""A log line names at most this many of the workers that have given up."""

_log = logging.getLogger(__name__)


def build_services(
    config: Config,
    environ: Mapping[str, str],
    gateway_index: GatewayIndex = ALONE,
) -> Services:
    """Build all parts; none runs yet. Raises `ConfigError` for secrets that are missing or broken,
    and for an alias whose parameters make every request invalid.
    """
    check_aliases(config.models)
    neighbours = gateway_index.neighbours(config.gateway.worker_bind)
    config = gateway_index.config(config)
    gateway = config.gateway
    counters, files = GatewayCounters(), ModelTexts()
    core = FleetState(
        config.models,
        max_queue=gateway.max_queue,
        resume_wait_s=gateway.resume_wait_s,
        rejoin_s=gateway.rejoin_wait_s,
        max_pause_s=gateway.max_pause_s,
        recovery_probes=gateway.recovery_probes,
    )
    feed = EventFeed(process=gateway_index.name)
    span_export = _span_export(config, counters, gateway_index.name)
    spending = Spending(config, environ, feed.publish)
    conversation_tracker = ConversationTracker(config, feed.publish, record_use=spending.record_use)
    traces = _traces(config, span_export, conversation_tracker)
    dispatcher = Dispatcher(core, feed)
    files.on_built = functools.partial(_tell_unknown_calls, config, dispatcher, feed)
    link = WorkerLink(
        dispatcher,
        files,
        counters,
        gateway_id=os.urandom(ID_BYTES),
        # Milliseconds since 1970: a larger epoch tells a worker that the gateway was restarted.
        epoch=time.time_ns() // 1_000_000,
        gateways=neighbours,
        keys=_link_keys(gateway),
        step=write_batch,
        admits_others=gateway.insecure_local,
    )
    return Services(
        config=config,
        dispatcher=dispatcher,
        link=link,
        files=files,
        providers=_providers(config, environ),
        counters=counters,
        spending=spending,
        feed=feed,
        health=ProviderHealth(config.providers, feed),
        retries=RetryBudget(feed, counters),
        open_turns=OpenTurns(feed, traces, grace_s=gateway.disconnect_grace_s),
        traces=traces,
        signing_key=signing_key(config, environ),
        stored=stored_responses(config, environ, feed.publish, gateway_index.place),
        audit=AuditTrail(feed, _audit_path(config, environ), gateway_index.name),
        conversation_tracker=conversation_tracker,
        span_export=span_export,
        prompts=read_model_prompts(config.models),
    )


def _link_keys(gateway: GatewayConfig) -> CurveServer | None:
    """The keys of the link to the workers. Raises `ConfigError`, also where it needs some."""
    if gateway.curve_secret_file is not None:
        return load_curve_server(gateway.curve_secret_file, gateway.curve_worker_keys)
    bind = gateway.worker_bind
    if is_local_address(bind) and not is_local(bind) and not gateway.insecure_local:
        raise ConfigError(  # a public address is refused as one where it is bound
            f"will not listen for workers on {bind} without keys, where any user of this host can "
            "join: set curve_secret_file and curve_worker_keys, or omit worker_bind"
        )
    return None


def _providers(config: Config, environ: Mapping[str, str]) -> dict[str, upstream.Provider]:
    return {
        name: upstream.Provider(name, table, provider_api_key(name, table, environ))
        for name, table in config.providers.items()
    }


def _audit_path(config: Config, environ: Mapping[str, str]) -> Path | None:
    try:
        return audit_path(config, environ)
    except ConfigError:
        return None  # the audit trail then logs an error for each act that it cannot write


def _traces(
    config: Config, span_export: SpanExport | None, conversation_tracker: ConversationTracker
) -> RequestTraces:
    """Ended requests are logged, or exported as spans, only if the configuration asks for it."""
    on_end = [conversation_tracker.leave]
    if config.gateway.log == "requests":
        on_end.append(log_request)
    if span_export is not None:
        on_end.append(span_export.add)
    return RequestTraces(*on_end, keeps_parents=span_export is not None)


def _tell_unknown_calls(
    config: Config, dispatcher: Dispatcher, feed: EventFeed, digest: bytes, text: ModelText
) -> None:
    """Name the models whose form of calls is unknown: their template shows tools with tags of no
    known format, and the configuration names no parser.
    """
    template = text.chat_template or ""
    if is_known_format(template):
        return
    named = {model.name for model in config.models if model.tool_parser != AUTO}
    for view in dispatcher.models():
        if view.files_digest == digest and view.name not in named:
            feed.publish(CallsUnknown(view.name, detect_tool_format(template).name))


def _span_export(
    config: Config, counters: GatewayCounters, process: str | None
) -> SpanExport | None:
    traces = config.gateway.traces
    if traces is None:
        return None
    try:
        from gateway.telemetry.otlp import OtlpSender  # noqa: PLC0415 -- an optional extra
    except ImportError as error:
        raise ConfigError(
            "[gateway.traces] needs OpenTelemetry's SDK: pip install 'herma[otel]', or remove it "
            f"({error})"
        ) from error
    return SpanExport(OtlpSender(traces.endpoint, VERSION, process, traces.sample).send, counters)


def edge_of(services: Services, process: str | None = None) -> Edge:
    """The interface of `services` to HTTP; `process` is the index of one of several processes."""
    return Edge(
        settings=EdgeSettings.of(services.config),
        version=VERSION,
        run_turn=functools.partial(answer_request, services),
        models=services.dispatcher.models,
        gauges=functools.partial(_gauges, services),
        draining=services.draining.is_set,
        spending=services.spending.figures,
        refuses=services.spending.refuses_all,
        process=process,
        text_of=functools.partial(known_text, services),
        preview=functools.partial(preview_route, services),
        room_of=functools.partial(prompt_room, services),
        pass_through=functools.partial(pass_through, services),
        listen=services.feed.listen,
        dashboard=Dashboard(services, VERSION, process),
        traces=services.traces,
        conversations=services.conversation_tracker.rows,
        prefixes=services.conversation_tracker.prefixes,
        audit=services.audit,
        signer=Signer(services.signing_key),
        stored=services.stored,
        draw=services.draw,
        encoding=services.encoding,
        # trio's clock is called directly: `trio.current_time` takes three calls to reach it.
        now=trio.lowlevel.current_clock().current_time,
        accounts=services.link.accounts,
    )


@asynccontextmanager
async def running(services: Services) -> AsyncIterator[str]:
    """Run all parts except the HTTP server while the block runs; gives the address that workers
    dial. Raises `ConfigError` when that address cannot be bound.
    """
    services.conversation_tracker.retain = services.link.retain
    services.conversation_tracker.accounts = services.link.accounts
    services.dispatcher.note_workerless(providers_alone(services.config))
    async with trio.open_nursery() as nursery:
        try:
            bind = services.config.gateway.worker_bind
            make_place(bind, os.environ)
            address = services.link.bind(bind)
            # A gateway that cannot open its ledger ends here, before any worker has joined it.
            await nursery.start(services.spending.run)
            await nursery.start(services.link.run)
            await nursery.start(services.dispatcher.run)
            await nursery.start(services.files.run)
            await nursery.start(services.open_turns.run)
            await nursery.start(services.stored.run)
            if services.span_export is not None:
                await nursery.start(services.span_export.run)
            recovery_probes = HealthProbes(
                services.dispatcher,
                services.link,
                services.draw,
                lambda: services.config.gateway.first_token_s,
            )
            await nursery.start(recovery_probes.run)
            yield address
        finally:
            nursery.cancel_scope.cancel()
            services.link.close()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                for provider in services.providers.values():
                    await provider.aclose()


async def run_gateway(
    config: Config,
    environ: Mapping[str, str],
    announce: Callable[[str], None],
    gateway_index: GatewayIndex = ALONE,
    reread: Callable[[], Config] | None = None,
    start: ProcessStart = FIRST,
    file: str = "",
) -> None:
    """Serve until SIGTERM or SIGINT, then wait for the open answers; a second signal ends the wait.

    `gateway_index` is the place of this process among several that share the port. `reread` reads
    the configuration file again, for a reload; it is None without a file. `start` is what the
    parent of several gateway processes reports about earlier processes of this index. `file` is the
    absolute path of the configuration file.

    `announce` gets "ready URL" once a model has a ready worker, or at once if the configuration has
    no workers and its models are answered by providers. If all workers give up before, and
    providers answer, it gets that line with these words behind it. Raises `ConfigError` when an
    address is taken or not allowed.
    """
    services = build_services(config, environ, gateway_index=gateway_index)
    alerting = Alerting(config, environ, services.feed, services.spending.figures)
    root = trio.CancelScope()
    manager = ServiceManager.take(os.environ)

    def drain() -> None:
        manager.stopping()
        if not services.draining.is_set():
            services.audit.note(Act("drain", "SIGTERM or SIGINT", "begun"))
        services.draining.set()
        services.dispatcher.stop()

    edge = edge_of(services, gateway_index.name)
    read = functools.partial(_read_again, reread, gateway_index)
    reload = Reload(services, edge.settings, read, environ)
    process = _Process(services, edge, gateway_index, start, manager, alerting, reload, file)
    _report_replacement(services, start)
    with graceful_stop(drain, lambda _number: root.cancel()):
        async with running(services) as address:
            with root:
                await _serve(root, process, address, announce)


@dataclass(frozen=True, slots=True)
class _Process:
    """The parts that are made once for the process, in addition to the services."""

    services: Services
    edge: Edge
    index: GatewayIndex
    start: ProcessStart
    manager: ServiceManager
    alerting: Alerting
    reload: Reload
    file: str


def _report_replacement(services: Services, start: ProcessStart) -> None:
    services.counters.processes_replaced = start.num_replaced
    if start.num_replaced:
        services.feed.publish(ProcessReplaced(start.why, start.num_replaced))


def _read_again(reread: Callable[[], Config] | None, gateway_index: GatewayIndex) -> Config:
    if reread is None:
        raise ConfigError("the gateway was started without --config FILE; start it with one")
    return gateway_index.config(reread())


async def _serve(
    root: trio.CancelScope, process: _Process, address: str, announce: Callable[[str], None]
) -> None:
    """Serve clients until `root` is cancelled; the HTTP server cancels it when it has drained."""
    services = process.services
    async with trio.open_nursery() as nursery:
        url = await nursery.start(_serve_to_the_end, root, process)
        if (dashboard := process.edge.dashboard) is not None:
            dashboard.siblings = Siblings(url) if process.index.is_shared else None
            await nursery.start(dashboard.run)
        nursery.start_soon(_cut_open_turns, services)
        nursery.start_soon(return_memory)
        nursery.start_soon(use_huge_pages)
        nursery.start_soon(process.reload.run_at_signals)
        nursery.start_soon(_answer_commands, process, url)
        nursery.start_soon(process.manager.keep_alive)
        if process.index.index == 0:
            await nursery.start(process.alerting.run)
        process.manager.ready(f"serving {url}")
        _log.info("serving %s, workers dial %s", url, address)

        def say_ready(how: str = "") -> None:
            announce(f"ready {url}/v1{how}")
            if process.edge.dashboard is not None and process.index.index == 0:
                announce(f"dashboard {url}/")

        has_providers = _has_providers(services.config)
        if services.config.workers or not has_providers:
            if has_providers:
                _log.info("%s/v1 answers by providers until a worker is ready", url)
            await _first_ready(services, say_ready if has_providers else None)
        await _warm_up(services)
        say_ready()


def _status(process: _Process, url: str) -> GatewayStatus:
    models = (
        ModelCover(model.name, model.ready_workers, model.cloud and bool(model.fallback))
        for model in process.services.dispatcher.models()
    )
    name, start = process.index.name or "", process.start
    return GatewayStatus(
        os.getpid(),
        url,
        VERSION,
        name,
        tuple(models),
        replaced=start.num_replaced,
        why=start.why,
        config=process.file,
        troubles=_troubles(process.services),
        ledger=process.services.spending.ledger,
    )


def _troubles(services: Services) -> tuple[str, ...]:
    """The parts that do not work now, although the gateway answers."""
    return tuple(filter(None, (services.spending.stuck_for, services.stored.trouble)))


async def _answer_commands(process: _Process, url: str) -> None:
    """Answer this user's commands on this host, such as `herma reload`, until cancelled."""

    async def answer(ask: Ask) -> Answer:
        match ask:
            case AskStatus():
                return _status(process, url)
            case AskReload():
                return await process.reload.take()
            case AskOverview() | AskRequest() if ask.url == url:
                return _shown(process.edge.dashboard, ask)
            case AskOverview() | AskRequest():
                raise ConfigError(f"this gateway serves {url}")
            case _:
                raise ConfigError("this is a gateway, not a worker")

    try:
        control = ControlSocket(GATEWAY_SOCKET, answer, process.services.audit.note)
    except ConfigError as error:
        _log.warning("`herma reload` will not find this gateway: %s", error)
    else:
        await control.run()


def _shown(dashboard: Dashboard | None, ask: AskOverview | AskRequest) -> Answer:
    """Dashboard data of this process, for the sibling process that shows the dashboard. Raises
    `ConfigError` if there is no dashboard or no such request.
    """
    if dashboard is None:
        raise ConfigError("this gateway has no dashboard")
    if isinstance(ask, AskOverview):
        return Shown(msgspec.Raw(msgspec.json.encode(dashboard.own(dashboard.read_clients()))))
    found = dashboard.explain(ask.name)
    if found is None:
        raise ConfigError("no such request is here")
    return Shown(msgspec.Raw(msgspec.json.encode(found)))


def _has_providers(config: Config) -> bool:
    """Whether providers can answer for a model whose workers are not ready."""
    return any(m.fallback and m.cloud == "allow" for m in config.models)


async def _first_ready(services: Services, say_ready: Callable[[str], None] | None) -> None:
    """Return once a model has a ready worker. `say_ready` is called if providers answer and all
    workers that are here have given up.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_log_what_is_awaited, services, say_ready)
        await services.dispatcher.has_ready.wait()
        nursery.cancel_scope.cancel()


async def _log_what_is_awaited(services: Services, say_ready: Callable[[str], None] | None) -> None:
    """Log one line once all registered workers have given up; other workers may still register."""
    with services.feed.listen() as listener:
        while not (given_up := _given_up(services)):
            await listener.wait()
            listener.take()
    causes = [f"{worker.name} has given up ({worker.fault})" for worker in given_up[:MAX_CAUSES]]
    _log.warning(
        "not ready, and no worker is starting: %s; waiting for one that is restarted or dials in",
        "; ".join(causes),
    )
    if say_ready is not None:
        say_ready(" (providers answer; no worker is ready yet)")


def _given_up(services: Services) -> tuple[WorkerView, ...]:
    """All workers if none of them is starting or serving; otherwise none."""
    workers = services.dispatcher.workers()
    return workers if all(worker.state == "down" for worker in workers) else ()


async def _warm_up(services: Services) -> None:
    """Load the tokenizers of the ready models, so that the first request does not wait for them."""
    for view in services.dispatcher.models():
        if view.state == "ready" and view.files_digest is not None:
            try:
                await services.files.text(view.files_digest)
            except ApiError as error:
                _log.error("model %s: %s", view.name, error)


async def _serve_to_the_end(
    root: trio.CancelScope,
    process: _Process,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on the shared port, and on this process's own port if it has one. `task_status` gets
    the URL of the shared port.
    """
    gateway = process.services.config.gateway
    certificates = None
    if gateway.tls_certificate_file is not None and gateway.tls_key_file is not None:
        certificates = Certificates(gateway.tls_certificate_file, gateway.tls_key_file)
    start = functools.partial(
        serve,
        edge_app(process.edge).enter,
        host=gateway.host,
        shutdown_trigger=process.services.draining.wait,
        drain_s=gateway.drain_s,
        certificates=certificates,
    )
    async with trio.open_nursery() as nursery:
        url = await nursery.start(
            functools.partial(start, port=gateway.port, is_shared=process.index.is_shared)
        )
        if gateway.process_port is not None:
            await nursery.start(functools.partial(start, port=gateway.process_port))
        task_status.started(url)
    root.cancel()


async def _cut_open_turns(services: Services) -> None:
    """Shortly before the server closes open connections, end the remaining turns with an error.
    Clients retry after an error, but take a stream that merely ends for a complete answer.
    """
    await services.draining.wait()
    drain_s = CUT_AT * services.config.gateway.drain_s
    await trio.sleep(drain_s)
    if num_cut := await services.open_turns.cut():
        what = "1 answer that was" if num_cut == 1 else f"{num_cut} answers that were"
        _log.warning("stopping: cut %s not over after %g s", what, drain_s)


def _gauges(services: Services) -> FleetGauges:
    statistics = services.dispatcher.statistics()
    counters = services.counters.as_dict()
    counters["unroutable_frames"] = services.link.statistics().unroutable
    return FleetGauges(
        unready_workers=statistics.workers - statistics.ready_workers,
        running=statistics.running,
        open_turns=services.open_turns.count,
        detached_requests=services.open_turns.num_detached,
        tasks=trio.lowlevel.current_statistics().tasks_living,
        events=dict(services.feed.counts),
        open_breakers=services.health.open_names(),
        counters=counters,
        workers=services.dispatcher.workers(),
        decisions=statistics.decisions,
        index_blocks=statistics.index_blocks,
        index_bytes=statistics.index_bytes,
        is_ledger_stuck=bool(services.spending.stuck_for),
    )
