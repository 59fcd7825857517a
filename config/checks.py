"""Rules that types cannot express: references between tables, names, prices, limits.

Owns the rules that need more than one key. Must not open sockets or read secrets.
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Final
from urllib.parse import urlsplit

from config.addresses import link_mistakes
from config.builtin_models import names_no_drafter, names_nothing, profiles
from config.list_prices import list_prices
from config.mistakes import Mistake, Place, name_of
from config.tables import (
    DUMMY_PREFIX,
    EXTERNAL_ENGINES,
    TEXT_ENGINE,
    Config,
    LedgerConfig,
    ParamsConfig,
    TariffConfig,
    WorkerConfig,
)
from protocol.addresses import MAX_PORT, nth_address
from protocol.errors import ConfigError

_MAX_ALERTS: Final = 8
"""Each receiver listens to the event feed, which has room for 16 listeners."""

_ENDPOINTS: Final = (
    "/chat/completions",
    "/completions",
    "/responses",
    "/messages",
    "/models",
    "/embeddings",
)
"""Paths that people copy together with an address from a provider's documentation."""

_DATABASE: Final = re.compile(r"(/\d{0,5})?", re.ASCII)

_NOT_REWRITTEN: Final = frozenset({"model", "messages", "prompt", "stream", "stream_options", "n"})


def mistakes(config: Config) -> Iterator[Mistake]:
    """The broken rules. Only the first is certain; later ones may follow from it."""
    return chain(
        _name_mistakes(config),
        _model_mistakes(config),
        _worker_mistakes(config),
        _params_mistakes(config),
        _template_mistakes(config),
        _price_mistakes(config),
        _list_price_mistakes(config),
        _url_mistakes(config),
        link_mistakes(config),
        process_mistakes(config),
        _ledger_mistakes(config.ledger),
        _alert_mistakes(config),
        _loop_mistakes(config),
    )


def process_mistakes(config: Config) -> Iterator[Mistake]:
    """Rules for several gateway processes on one port."""
    gateway = config.gateway
    if gateway.processes == 1:
        return
    last = gateway.processes - 1
    try:
        nth_address(gateway.worker_bind, last)
    except ConfigError as error:
        yield Mistake(("gateway", "worker_bind"), str(error))
    if gateway.process_port is not None and not 0 < gateway.process_port <= MAX_PORT - last:
        yield Mistake(
            ("gateway", "process_port"),
            f"[gateway] process_port = {gateway.process_port} leaves no port for each of "
            f"{gateway.processes} processes; it is 1 to {MAX_PORT - last}",
        )


def _url_mistakes(config: Config) -> Iterator[Mistake]:
    """Mistakes in addresses that match their pattern and still cannot be dialled."""
    urls: list[tuple[Place, str | None]] = [
        *(
            (("providers", name, "base_url"), one.base_url)
            for name, one in config.providers.items()
        ),
        *((("workers", at, "url"), worker.url) for at, worker in enumerate(config.workers)),
    ]
    if config.gateway.traces is not None:
        urls.append((("gateway", "traces", "endpoint"), config.gateway.traces.endpoint))
    for place, url in urls:
        if url is not None and (why := _no_url(url)) is not None:
            yield Mistake(place, f"{name_of(place)} is not an address: {why}")
    for name, one in config.providers.items():
        if (why := _no_base(one.base_url)) is not None:
            place = ("providers", name, "base_url")
            yield Mistake(place, f"{name_of(place)} {why}")


def _no_base(url: str) -> str | None:
    """Why the paths of requests cannot follow `url`; None if they can."""
    if "?" in url or "#" in url:
        return "has a query or a fragment, behind which no path can stand: remove it"
    path = url.rstrip("/")
    if (end := next((one for one in _ENDPOINTS if path.endswith(one)), None)) is not None:
        return f"ends in {end}, which each request adds: leave that away"
    return None


def _no_url(url: str) -> str | None:
    """Why `url` is not an address, without its text, which may hold a password; None if it is."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "its host is malformed"
    if parts.scheme != "unix" and not parts.hostname:
        return "it needs a host"
    try:
        _ = parts.port
    except ValueError:
        return f"its port is not a number from 0 to {MAX_PORT}"
    return None


def _ledger_mistakes(ledger: LedgerConfig) -> Iterator[Mistake]:
    """Mistakes in the address of the server for shared limits. Its password belongs in the
    environment.
    """
    if ledger.shared is None:
        if ledger.shared_password_env is not None:
            place = ("ledger", "shared_password_env")
            yield Mistake(place, "[ledger] shared_password_env is of `shared`, which is absent")
        return
    try:
        parts = urlsplit(ledger.shared)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    is_server = parts.scheme in {"redis", "rediss"} and parts.hostname and port != 0
    is_plain = "@" not in parts.netloc and not parts.query and not parts.fragment
    if not is_server or not is_plain or not _DATABASE.fullmatch(parts.path):
        # Without the value, which may hold a password.
        text = (
            "[ledger] shared is redis://HOST:PORT/DATABASE, or rediss:// for TLS; a password comes "
            "from shared_password_env"
        )
        yield Mistake(("ledger", "shared"), text)


def _name_mistakes(config: Config) -> Iterator[Mistake]:
    public: list[tuple[Place, str]] = []
    for at, model in enumerate(config.models):
        public.append((("models", at, "name"), model.name))
        public += [(("models", at, "aliases", i), name) for i, name in enumerate(model.aliases)]
    workers, keys = list(enumerate(config.workers)), list(enumerate(config.keys))
    alerts, hosts = list(enumerate(config.alerts)), list(enumerate(config.hosts))
    for kind, names in (
        ("model name or alias", public),
        ("worker name", [(("workers", at, "name"), worker.name) for at, worker in workers]),
        ("key name", [(("keys", at, "name"), key.name) for at, key in keys]),
        ("alert name", [(("alerts", at, "name"), one.name) for at, one in alerts]),
        ("host name", [(("hosts", at, "name"), one.name) for at, one in hosts]),
        ("key hash", [(("keys", at, "hash"), key.hash) for at, key in keys]),
    ):
        seen: set[str] = set()
        for place, name in names:
            if name in seen:
                yield Mistake(place, f"the {kind} `{name}` is used twice")
            seen.add(name)


def _alert_mistakes(config: Config) -> Iterator[Mistake]:
    if len(config.alerts) > _MAX_ALERTS:
        yield Mistake(("alerts",), f"{len(config.alerts)} receivers; at most {_MAX_ALERTS}")
    for at, one in enumerate(config.alerts):
        ways = [one.url is not None, one.url_env is not None, bool(one.command)]
        if sum(ways) != 1:
            text = f"alerts `{one.name}` needs one of `url`, `url_env` and `command`"
            yield Mistake(("alerts", at), text)
        if one.command and (one.token_env is not None or one.form != "json"):
            text = "a command gets JSON on its standard input: remove `form` and `token_env`"
            yield Mistake(("alerts", at, "command"), text)
    names = {model.name for model in config.models}
    for at, host in enumerate(config.hosts):
        if host.mac is None and not host.power:
            text = f"host `{host.name}` has neither `mac` nor `power`: nothing can be done to it"
            yield Mistake(("hosts", at), text)
        if host.mac is not None and not host.models:
            text = f"host `{host.name}` is woken by requests for its `models`, and names none"
            yield Mistake(("hosts", at, "mac"), text)
        for i, model in enumerate(host.models):
            if model not in names:
                yield Mistake(("hosts", at, "models", i), f"there is no model `{model}`")


def _model_mistakes(config: Config) -> Iterator[Mistake]:
    for at, model in enumerate(config.models):
        if model.profile not in profiles():
            known = ", ".join(sorted(profiles()))
            text = f"unknown profile `{model.profile}`; known: {known}"
            yield Mistake(("models", at, "profile"), text)
        for i, target in enumerate(model.fallback):
            if target.provider not in config.providers:
                yield Mistake(
                    ("models", at, "fallback", i, "provider"),
                    f"model `{model.name}` falls back to provider `{target.provider}`, "
                    f"which has no table [providers.{target.provider}]",
                )
        if model.while_waking == "cloud" and not model.fallback:
            text = f'model `{model.name}` has while_waking = "cloud" and no `fallback` to go to'
            yield Mistake(("models", at, "while_waking"), text)
        if model.while_waking == "cloud" and model.cloud == "never":
            text = (
                f'model `{model.name}` has while_waking = "cloud" and cloud = "never": remove one'
            )
            yield Mistake(("models", at, "while_waking"), text)
        on_demand = model.residency == "on-demand" or any(
            worker.serves == model.name and worker.residency == "on-demand"
            for worker in config.workers
        )
        if not on_demand and (model.idle_s is not None or model.while_waking != "wait"):
            key = "while_waking" if model.idle_s is None else "idle_s"
            text = f'model `{model.name}`: {key} needs residency = "on-demand"'
            yield Mistake(("models", at, key), text)


def _worker_mistakes(config: Config) -> Iterator[Mistake]:
    models = {model.name for model in config.models}
    for at, worker in enumerate(config.workers):
        if worker.engine == TEXT_ENGINE:
            pass  # `model` is the engine's own name for it
        elif worker.model.startswith(DUMMY_PREFIX):
            yield Mistake(
                ("workers", at, "model"),
                f"worker `{worker.name}` cannot serve {worker.model}, which has neither "
                "weights nor a tokenizer; it is only for `herma bench engine`",
            )
        elif (why := names_nothing(worker.model)) is not None:
            yield Mistake(("workers", at, "model"), f"worker `{worker.name}`: {why}")
        drafting = worker.drafting
        if drafting is not None and (why := names_no_drafter(drafting.drafter)) is not None:
            yield Mistake(("workers", at, "speculation"), f"worker `{worker.name}`: {why}")
        if models and worker.serves not in models:
            yield Mistake(
                ("workers", at, "serves"),
                f"worker `{worker.name}` serves `{worker.serves}`, "
                f"which is not a [[models]] name; known: {', '.join(sorted(models))}",
            )
        yield from _residency_mistakes(worker, at)
        yield from _turn_mistakes(config, worker, at)
        yield from _window_mistakes(worker, at)
        yield from _card_mistakes(worker, at)
        other = next((one for one in config.workers if _shares_gpu(worker, one)), None)
        if worker.owns_gpu and other is not None:
            yield Mistake(
                ("workers", at, "owns_gpu"),
                f"worker `{worker.name}` owns {' and '.join(worker.host_devices)}, which "
                f"`{other.name}` uses too: it would end that engine; leave owns_gpu out",
            )


def _window_mistakes(worker: WorkerConfig, at: int) -> Iterator[Mistake]:
    """Mistakes of windows: the configured window must fit into the configured keys and values."""
    tokens, window = worker.kv_tokens, worker.context_length
    if tokens is None or window is None:
        return
    if -(-tokens // worker.block_size) * worker.block_size < window:
        text = (
            f"worker `{worker.name}`: kv_tokens = {tokens} hold no window of context_length = "
            f"{window}: raise kv_tokens, or lower context_length"
        )
        yield Mistake(("workers", at, "kv_tokens"), text)


def _residency_mistakes(worker: WorkerConfig, at: int) -> Iterator[Mistake]:
    """Mistakes of workers that take turns: each must have a way to sleep."""
    if worker.residency == "always":
        if worker.idle_s is not None:
            text = f'worker `{worker.name}`: idle_s needs residency = "on-demand"'
            yield Mistake(("workers", at, "idle_s"), text)
        return
    place = ("workers", at, "residency")
    who = f'worker `{worker.name}` has residency "on-demand"'
    if worker.group is not None:
        yield Mistake(place, f"{who} and a `group`: the ranks of a group are always resident")
    elif worker.tensor_parallel > 1:
        yield Mistake(place, f"{who} and several cards: it is always resident")
    elif worker.owns_gpu:
        yield Mistake(place, f"{who} and owns_gpu, which would end the engines of the others")
    elif worker.is_attached:
        yield Mistake(place, f"{who}, but its engine is started by others: give it a `launch`")
    elif worker.engine in EXTERNAL_ENGINES and worker.device == "auto":
        text = f'{who}, and its `device` is not named: add device = "cuda:0", its card, or "cpu"'
        yield Mistake(place, text)


def _turn_mistakes(config: Config, worker: WorkerConfig, at: int) -> Iterator[Mistake]:
    """A worker of several cards has a seat at the table of its first one alone: on another card it
    would start beside a model that has taken its memory, or take it from under that model.
    """
    if worker.residency == "always":
        return
    for other in config.workers:
        first, *more = map(_card, other.host_devices)
        shared = _cards(worker).intersection(more) - {first}
        if other is not worker and shared:
            text = (
                f'worker `{worker.name}` has residency "on-demand" on {shared.pop()}, a further '
                f"card of `{other.name}`, which gives and takes turns on {first} alone: move it to "
                f"{first} or to a card of its own, or make it always resident"
            )
            yield Mistake(("workers", at, "residency"), text)


def _card_mistakes(worker: WorkerConfig, at: int) -> Iterator[Mistake]:
    """Each rank needs a card of its own, and no card may be named that is not taken."""
    who = f"worker `{worker.name}`"
    if worker.tensor_parallel == 1:
        if worker.devices:
            text = f"{who}: `devices` are the cards of several ranks; name the card in `device`"
            yield Mistake(("workers", at, "devices"), text)
        return
    if worker.group is not None:
        return
    devices = worker.devices
    are_cards = all(":" in one for one in devices) and len(set(devices)) == len(devices)
    if not are_cards and set(devices) != {"cpu"}:
        text = f'{who}: `devices` needs a card of its own for each rank, as "cuda:0", "cuda:1"'
        yield Mistake(("workers", at, "devices"), text)
    known = {"auto", devices[0]} if devices else {"auto", "cpu", "cuda", "cuda:0"}
    if worker.device not in known:
        count = worker.tensor_parallel
        text = (
            f"{who}: `device` names one card, and tensor_parallel = {count} takes {count}: name "
            "them in `devices`, and leave `device` out"
        )
        yield Mistake(("workers", at, "device"), text)


def _shares_gpu(worker: WorkerConfig, other: WorkerConfig) -> bool:
    """Whether both use one card. Ranks of a group are on hosts of their own."""
    if worker is other:
        return False
    is_one_group = worker.group is not None and worker.group == other.group
    if other.is_attached:
        return False
    return not is_one_group and not _cards(worker).isdisjoint(_cards(other))


def _cards(worker: WorkerConfig) -> set[str]:
    """The cards of this host that a worker uses, by number; the CPU is none."""
    return {_card(one) for one in worker.host_devices if one != "cpu"}


def _card(device: str) -> str:
    return "cuda:0" if device in ("auto", "cuda") else device


def _params_mistakes(config: Config) -> Iterator[Mistake]:
    """`params` must not rewrite the fields that only the client decides; `alias_params` must name
    an alias.
    """
    for at, model in enumerate(config.models):
        for alias in model.alias_params:
            if alias not in model.aliases:
                yield Mistake(
                    ("models", at, "alias_params", alias),
                    f"model `{model.name}` has alias_params for `{alias}`, "
                    f"which is not one of its aliases; known: {', '.join(model.aliases) or 'none'}",
                )
        for place, params in _params_of(config, at):
            named = {*params.set, *params.default, *params.drop}
            if taken := sorted(named & _NOT_REWRITTEN):
                yield Mistake(
                    place,
                    f"the params of model `{model.name}` rewrite `{taken[0]}`, "
                    f"which is fixed; fixed are {', '.join(sorted(_NOT_REWRITTEN))}",
                )


def _template_mistakes(config: Config) -> Iterator[Mistake]:
    """A text-level engine renders its own template; variables are sent to it."""
    texts = {worker.serves for worker in config.workers if worker.engine == TEXT_ENGINE}
    for at, model in enumerate(config.models):
        if model.chat_template is not None and model.name in texts:
            text = f"model `{model.name}`: its engine renders the template: set it in the engine"
            yield Mistake(("models", at, "chat_template"), text)


def _params_of(config: Config, at: int) -> Iterator[tuple[Place, ParamsConfig]]:
    for alias, params in config.models[at].alias_params.items():
        yield ("models", at, "alias_params", alias), params
    for i, target in enumerate(config.models[at].fallback):
        yield ("models", at, "fallback", i, "params"), target.params


def _list_price_mistakes(config: Config) -> Iterator[Mistake]:
    try:
        list_prices(config.ledger)
    except ConfigError as error:
        yield Mistake(("ledger", "list_prices"), str(error))


def _loop_mistakes(config: Config) -> Iterator[Mistake]:
    """Where `[loops]` changes the model, `other_model` must be set and be a model of the file."""
    loops, names = config.loops, {model.name for model in config.models}
    if loops.model and loops.other_model is None:
        text = "[loops] model needs other_model, the name of the model that answers instead"
        yield Mistake(("loops", "model"), text)
    if loops.other_model is not None and loops.other_model not in names:
        text = f"[loops] other_model names `{loops.other_model}`, which is no model of this file"
        yield Mistake(("loops", "other_model"), text)


def _price_mistakes(config: Config) -> Iterator[Mistake]:
    """Mistakes of prices: under a limit every price must be known."""
    limited_clients = _limited_clients(config)
    for model in config.models:
        for target in model.fallback if model.cloud == "allow" else ():
            if (provider := config.providers.get(target.provider)) is None:
                continue
            tariff = provider.models.get(target.model, TariffConfig())
            if provider.price is not None or tariff.price is not None:
                continue
            limited = f"provider `{target.provider}`" if provider.limits.any else None
            limited = limited or limited_clients
            if limited is not None:
                yield Mistake(
                    ("providers", target.provider),
                    f"{limited} has a spending limit, but the price of "
                    f"`{target.model}` at `{target.provider}` is not known; set [providers."
                    f"{target.provider}] price = {{ input = ..., output = ... }} (0 if it is free)",
                )


def _limited_clients(config: Config) -> str | None:
    """The first client of the file whose money at all providers together is limited, in words: a
    key, or conversations. None if no client's is.
    """
    keys = [key for key in config.keys if key.cloud == "allow"]
    for key in keys:
        if key.limits.any:
            return f"key `{key.name}`"
        if key.conversation.money is not None:
            return f"each conversation of key `{key.name}`"
    if config.limits.conversation.money is not None and (keys or not config.keys):
        return "each conversation"
    return None
