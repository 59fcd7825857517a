"""The tables of the configuration file.

Owns names, defaults and bounds of every key. Must not read files or the environment. Measured facts
(the number of KV blocks) are results, not configuration.
"""

import os
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from config.places import worker_address

_NAME: Final = r"^[A-Za-z0-9._:/@-]+$"
_ALIAS: Final = r"^[A-Za-z0-9._:/@-]*[A-Za-z0-9._:/@*-]$"
_CLIENT: Final = r"^(\*|[a-z0-9._-]{1,32})$"
_URL: Final = r"^https?://"
_DEVICE: Final = r"^(auto|cpu|cuda(:\d+)?)$"
_CURRENCY: Final = r"^[A-Z]{3}$"
_FIELD_NAME: Final = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"
_ZMQ_URL: Final = r"^(tcp|ipc)://.+$"
_TARGET: Final = r"^/[!-~]*$"
_PATH: Final = r"^(/[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*)+$"
_ENGINE_URL: Final = r"^(https?://[^/?#]+(/v1)?/?|unix:/.+)$"
_SIZE: Final = r"^(auto|0|[1-9]\d{0,5}(MiB|GiB|TiB))$"
NAME_IN_WORDS: Final = "letters, digits and . _ : / @ - only"
PATTERNS: Final = {
    _NAME: NAME_IN_WORDS,
    _ALIAS: "letters, digits and . _ : / @ - only, perhaps with * at the end",
    _CLIENT: "a program's name in its user-agent, in lower case, or * for all",
    _URL: "an address that begins with http:// or https://",
    _DEVICE: "auto, cpu, cuda or cuda:N",
    _CURRENCY: "three capital letters, as USD or EUR",
    _FIELD_NAME: "letters, digits, _ and - only, a letter first",
    _ZMQ_URL: "tcp://HOST:PORT or ipc://PATH",
    _TARGET: "a path that begins with /",
    _PATH: "a path below /v1 as /videos: segments behind single slashes, none begins with a dot",
    _SIZE: "auto, 0 for none, or a size as 64GiB",
    _ENGINE_URL: "http://HOST:PORT, https://HOST:PORT or unix:/PATH",
}
"""The patterns of this module in words."""

OTHER_WORDS: Final = {
    **dict.fromkeys(
        ("ollama", "lmstudio", "lm-studio", "lm_studio", "tgi", "litellm", "transformers", "mlx"),
        "openai",
    ),
    **dict.fromkeys(("llama.cpp", "llamacpp", "llama_cpp", "llama-server"), "llama-cpp"),
    "herma": "native",
}
"""Words that people write for a choice, and the choice; none is similar enough to guess."""

OTHER_KEYS: Final = {
    **dict.fromkeys(
        ("max_model_len", "max_seq_len", "ctx_size", "num_ctx", "n_ctx", "context_size"),
        "context_length",
    ),
    **dict.fromkeys(("max_num_seqs", "parallel", "num_parallel"), "max_seqs"),
    **dict.fromkeys(("max_num_batched_tokens", "chunked_prefill_size"), "token_budget"),
    **dict.fromkeys(("kv_cache_dtype", "cache_type_k"), "kv_dtype"),
    **dict.fromkeys(("tp", "tp_size"), "tensor_parallel"),
    **dict.fromkeys(("gpu", "gpus"), "device"),
    **dict.fromkeys(("path", "model_path", "model_dir"), "model"),
    **dict.fromkeys(("url", "endpoint", "api_base"), "base_url"),
    **dict.fromkeys(("listen", "bind", "address"), "host"),
    **dict.fromkeys(("key", "secret", "token"), "hash"),
}
"""Keys of other programs, and ours where a table has it; none is similar enough to guess."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=_NAME)]
Alias = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=_ALIAS)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Gap = Annotated[float, msgspec.Meta(gt=0, le=60_000)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=2**50)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=99)]
Processes = Annotated[int, msgspec.Meta(ge=1, le=64)]
"""A worker dials at most this many gateways."""
Pause = Annotated[float, msgspec.Meta(ge=0, le=3600)]
HangSeconds = Annotated[float, msgspec.Meta(ge=3, le=3600)]
"""A gateway process beats once a second."""
Amount = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]

PassedPath = Annotated[str, msgspec.Meta(max_length=256, pattern=_PATH)]

ReasoningField = Literal["reasoning_content", "reasoning", "none"]
CapField = Literal["max_tokens", "max_completion_tokens"]
CallIdForm = Literal["any", "short", "nine"]
ThinkingSwitch = Literal[
    "chat_template_kwargs", "thinking", "enable_thinking", "reasoning", "reasoning_effort", "none"
]
Continues = Literal["auto", "off", "continue_final_message", "prefix", "last_message"]
ToolParserName = Literal[
    "auto",
    "none",
    "hermes",
    "qwen3_coder",
    "llama3_json",
    "mistral",
    "deepseek_v3",
    "deepseek_v4",
    "kimi_k2",
    "glm",
    "hy3",
    "kimi_k3",
    "minicpm5",
    "solar_open",
    "gigachat",
    "phi4_mini",
    "function_gemma",
    "gemma4",
    "harmony",
    "minimax_m2",
    "muse_glimmer",
    "minimax_m3",
    "minimax_m1",
    "lfm2",
    "apertus",
    "nemotron",
    "cohere",
]
ReasoningParserName = Literal[
    "auto",
    "none",
    "think",
    "seed",
    "mistral",
    "cohere",
    "kimi_vl",
    "gemma4",
    "minimax_m3",
    "apertus",
    "harmony",
    "hy3",
    "kimi_k3",
    "solar_open",
    "muse_glimmer",
    "apriel",
]

Residency = Literal["always", "on-demand"]

DUMMY_PREFIX: Final = "dummy:"
"""Models without weights and tokenizer, only for `herma bench engine`."""

_KEY_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: frozen, by keyword, unknown keys refused."""


class ResponsesConfig(_Table, frozen=True):
    """`[gateway.responses]`: the stored responses and conversations of the Responses API.
    `path` is their file, by default beside the ledger. An entry that is not used for `expire_days`
    is deleted. Where a bound is reached, the least recently used entries are deleted:
    `max_responses` and `max_bytes` bound all keys together, `max_key_responses` and `max_key_bytes`
    one key. At most `max_background` responses run in the background at a time.
    """

    store: Literal["allow", "never"] = "allow"
    path: str | None = None
    expire_days: Annotated[float, msgspec.Meta(gt=0, le=3650)] = 30.0
    max_responses: Positive = 100_000
    max_bytes: Bytes = 4 * 2**30
    max_key_responses: Positive = 10_000
    max_key_bytes: Bytes = 2**30
    max_background: Positive = 64


class RateLimitConfig(_Table, frozen=True):
    """`rate_limit = { ... }`: requests per minute, and tokens of prompts and answers per minute. An
    absent value is no limit.
    """

    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None

    @property
    def any(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None

    def share(self, count: int) -> "RateLimitConfig":
        """The part of one of `count` processes, at least 1."""
        parts = (
            None if whole is None else max(1, whole // count)
            for whole in (self.requests_per_minute, self.tokens_per_minute)
        )
        return RateLimitConfig(**dict(zip(self.__struct_fields__, parts, strict=True)))


class TracesConfig(_Table, frozen=True):
    """`[gateway.traces]`: the collector that gets a span per request, by OTLP over HTTP. `sample`
    is the recorded share of requests. One whose client names a span is recorded if that span is.
    """

    endpoint: Annotated[str, msgspec.Meta(pattern=_URL)]
    sample: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


def _own_address() -> str:
    return worker_address("", os.environ)


class GatewayConfig(_Table, frozen=True):
    """`[gateway]`: addresses, time limits, bounds and files.

    Addresses. Clients connect to `host` and `port` (0: any free port), workers to `worker_bind`, by
    default a Unix socket of this user and this file. Workers at `tcp://` addresses have CURVE keys.
    For loopback they are made at the first start, unless `curve_secret_file` names the gateway's.
    `insecure_local` admits processes of this host without keys, of any user.
    Several `processes` share the port: process i takes workers at `worker_bind` + i, and answers
    alone on `process_port` + i, so that each one's metrics can be read. One of several processes
    whose event loop does not turn for `hang_s` is replaced.

    Answers. A response head is withheld for at most `head_hold_s`; an empty delta follows each
    `keep_alive_s` of silence. After a failure that a retry may cure, a stream ends with an event
    that names the error; for clients whose user agent begins with one of `break_streams_of` the
    gateway closes the connection instead. A limit that lasts is answered with 429; clients whose
    user agent begins with one of `lasting_limits_402` get 402, because they repeat a request after
    any 429, whatever its headers say. A streamed request outlives its client by
    `disconnect_grace_s` before the first token. At a stop, open answers have `drain_s` to end.

    Workers. A request waits for `resume_wait_s` for a worker that restarts, and for `rejoin_wait_s`
    for one whose link is gone, or that has yet to dial in after a start or a reload that names its
    model: workers dial in within a second, but a host that slept or a restarted supervisor takes
    longer. A model that only workers name stays known for the same time.
    A worker that sends nothing for a sequence within `first_token_s`, or nothing more of it for
    `stall_s`, has lost it; what its engine reports of the sequence (progress within the prompt, a
    place in a queue, a preemption) counts, and before its first token the progress of others too.
    `recovery_probes` successes in a row end a fallback to providers.

    Bounds. `max_queue` bounds the waiting sequences of one model; by default as many as its workers
    take at once, at least 256. Agents' conversations that do not all fit into the workers' memory
    take turns of several requests where that pays; none waits for longer than `max_pause_s` for its
    turn, and with 0 they do not take turns.
    `rate_limit` applies to each key without its own, `address_rate_limit` to each client address in
    addition. An event reports each of `spending_thresholds`, in percent of a spending limit, that
    is passed.

    Paths. In addition to inference, embeddings, rerank, images and audio, a POST to one of `paths`
    (below /v1, as "/videos") is passed on to the server of its model.

    Files. The key in `signing_key_file`, by default beside the ledger, signs reasoning that clients
    send back. `tls_certificate_file` and `tls_key_file`, both or none, are PEM files and are read
    again when they change. `curve_worker_keys` maps worker names to their public keys. `log` is
    "requests" for one line per request.
    """

    host: str = "127.0.0.1"
    port: Port = 8080
    processes: Processes = 1
    process_port: Port | None = None
    worker_bind: str = msgspec.field(default_factory=_own_address)
    insecure_local: bool = False
    head_hold_s: Seconds = 10.0
    keep_alive_s: Seconds = 10.0
    break_streams_of: tuple[str, ...] = ("claude-cli/", "ai-sdk/openai-compatible/")
    lasting_limits_402: tuple[str, ...] = ("QwenCode/", "opencode/", "ai/", "ai-sdk", "pi/")
    resume_wait_s: Seconds = 120.0
    rejoin_wait_s: Seconds = 15.0
    first_token_s: Seconds = 600.0
    stall_s: Seconds = 120.0
    disconnect_grace_s: Seconds = 10.0
    recovery_probes: Positive = 3
    drain_s: Seconds = 10.0
    hang_s: HangSeconds = 10.0
    max_queue: Positive | None = None
    max_pause_s: Pause = 300.0
    max_body_bytes: Positive = 32 * 2**20
    allowed_origins: tuple[str, ...] = ()
    paths: tuple[PassedPath, ...] = ()
    curve_secret_file: str | None = None
    curve_worker_keys: dict[str, str] = {}
    signing_key_file: str | None = None
    tls_certificate_file: str | None = None
    tls_key_file: str | None = None
    spending_thresholds: tuple[Percent, ...] = (50, 80)
    rate_limit: RateLimitConfig | None = None
    address_rate_limit: RateLimitConfig | None = None
    log: Literal["events", "requests"] = "events"
    responses: ResponsesConfig = ResponsesConfig()
    traces: TracesConfig | None = None


class ParamsConfig(_Table, frozen=True):
    """`params = { ... }`: rewrites the fields of requests. `drop` removes fields, `default` sets
    fields that the client has not set, `set` sets fields in any case.
    """

    set: dict[str, Any] = {}
    default: dict[str, Any] = {}
    drop: tuple[str, ...] = ()


class FallbackConfig(_Table, frozen=True):
    """`[[models.fallback]]`: a provider of the file, the model's name there, and how requests for
    it are rewritten.
    """

    provider: Name
    model: str
    params: ParamsConfig = ParamsConfig()


class ModelConfig(_Table, frozen=True):
    """`[[models]]`: a public name, its aliases, and its providers for when no worker can serve it.
    An alias that ends in `*` stands for all names that begin with the text before it.
    `alias_params` rewrites the requests that name an alias. `context_length` is only used until a
    worker reports the model's. `max_gap_ms` replaces the profile's for its workers. `owned_by`
    is in lists of models. `chat_template` is a file with a template instead of the model's own,
    `chat_template_kwargs` are its variables where a request does not give them. `pictures` says
    what happens to those that a model of text cannot read. `reasoning_field`,
    `thinking_switch`, `cap_field` and `call_ids` are those of its text-level engines, as of a
    provider.

    With `residency` "on-demand" its workers hold memory of their `device` only while they are used:
    they take turns with others of that device, and those that fit together are resident together.
    One without work falls asleep after `idle_s`, by default only when another needs the memory. A
    request for a sleeping model wakes it and waits; `while_waking` "cloud" sends it to the model's
    providers meanwhile.
    """

    name: Name
    aliases: tuple[Alias, ...] = ()
    alias_params: dict[str, ParamsConfig] = {}
    profile: str = "balanced"
    fallback: tuple[FallbackConfig, ...] = ()
    cloud: Literal["allow", "never"] = "allow"
    context_length: Positive | None = None
    max_gap_ms: Gap | None = None
    tool_parser: ToolParserName = "auto"
    reasoning_parser: ReasoningParserName = "auto"
    owned_by: Name = "herma"
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}
    pictures: Literal["replace", "refuse"] = "replace"
    reasoning_field: ReasoningField | None = None
    thinking_switch: ThinkingSwitch = "chat_template_kwargs"
    cap_field: CapField | None = None
    call_ids: CallIdForm | None = None
    residency: Residency = "always"
    idle_s: Seconds | None = None
    while_waking: Literal["wait", "cloud"] = "wait"


def wildcard_of(name: str, aliases: Iterable[str]) -> str | None:
    """The longest of the `aliases` ending in `*` that match `name`; None if none does."""
    fits = [alias for alias in aliases if alias[-1] == "*" and name.startswith(alias[:-1])]
    return max(fits, key=len, default=None)


class PriceConfig(_Table, frozen=True):
    """`price = { ... }`: units of the ledger's currency per million tokens. Without `cached_input`
    cached prompt tokens cost as much as others. `request` is the price of one request whose cost
    tokens do not show: of a picture, of an audio request, and of any path in `[gateway] paths`. 0
    is free.
    """

    input: Amount
    output: Amount
    cached_input: Amount | None = None
    request: Amount | None = None


class LimitsConfig(_Table, frozen=True):
    """`limits = { ... }`: units of the ledger's currency per UTC day and month. 0 forbids every
    request with a cost; without a value there is no limit.
    """

    daily: Amount | None = None
    monthly: Amount | None = None

    @property
    def any(self) -> bool:
        return self.daily is not None or self.monthly is not None


class ConversationLimitsConfig(_Table, frozen=True):
    """`[limits.conversation]`: what one conversation of an agent may use; without a value there is
    no limit. `money` is in units of the ledger's currency, at all providers together. A key has its
    own in `conversation = { ... }`, which replace these one by one.
    """

    tokens: Annotated[int, msgspec.Meta(ge=1, le=2**50)] | None = None
    money: Amount | None = None
    turns: Positive | None = None
    minutes: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] | None = None

    @property
    def any(self) -> bool:
        return self != ConversationLimitsConfig()


class AllLimitsConfig(_Table, frozen=True):
    """`[limits]`: limits that are of no provider and no key."""

    conversation: ConversationLimitsConfig = ConversationLimitsConfig()


Rounds = Annotated[int, msgspec.Meta(ge=0, le=64)]


class LoopsConfig(_Table, frozen=True):
    """`[loops]`: what is done about an agent that repeats calls which bring nothing new, by the
    number of repeats after which it is done (0: never; at least 3). `alert` publishes an event,
    of which receivers of alerts learn; `header` adds `x-herma-loop` to the answer; `hint` adds a
    line to the prompt; `slow` holds each request for `slow_s`; `model` asks `other_model` instead;
    `end` refuses the request with an error.
    """

    alert: Rounds = 5
    header: Rounds = 0
    hint: Rounds = 0
    slow: Rounds = 0
    model: Rounds = 0
    end: Rounds = 0
    slow_s: Annotated[float, msgspec.Meta(gt=0, le=600)] = 10.0
    other_model: str | None = None

    @property
    def first(self) -> int | None:
        """The fewest repeats after which anything is done; None if nothing ever is."""
        steps = (self.alert, self.header, self.hint, self.slow, self.model, self.end)
        return min(filter(None, steps), default=None)

    def __post_init__(self) -> None:
        for name in ("alert", "header", "hint", "slow", "model", "end"):
            if getattr(self, name) in {1, 2}:
                raise ValueError(f"{name} is 0, or at least 3: agents do some things twice")


class RepairConfig(_Table, frozen=True):
    """`[[repairs]]`: what is done to the prompts of a client whose changing lines break its prefix
    cache (`herma doctor --prefixes` names them). `strip` takes the lines of the system prompt that
    match `lines` as a whole, `move` puts them behind the last user message, and `sort_tools`
    orders tools by their names. Every other byte stays; where that is not possible nothing is done.
    """

    client: Annotated[str, msgspec.Meta(pattern=_CLIENT)]
    do: Literal["strip", "move", "sort_tools"]
    lines: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)] | None = None
    on: bool = True

    def __post_init__(self) -> None:
        if (self.lines is None) == (self.do != "sort_tools"):
            raise ValueError("strip and move need `lines`, sort_tools has none")
        if self.lines is None:
            return
        try:
            pattern = re.compile(self.lines)
        except re.error as error:
            raise ValueError(f"lines is no regular expression: {error}") from error
        if pattern.fullmatch("") is not None:
            raise ValueError("lines matches an empty line, and so takes all of them")


class TariffConfig(_Table, frozen=True):
    """`[providers.NAME.models."MODEL"]`: values of one model that differ from its provider's."""

    price: PriceConfig | None = None
    max_output_tokens: Positive | None = None


class ProviderConfig(_Table, frozen=True):
    """`[providers.NAME]`: an OpenAI-compatible API. Its key comes from the environment variable
    `api_key_env` or the file `api_key_file`, never from the configuration itself.

    `first_token_s` bounds the time to the first data of a stream, `read_s` the silence after it,
    `answer_s` the time to an answer in one piece.

    `max_output_tokens` is the longest answer of its models. With `stream_usage` the usage of every
    stream is requested; without it a stream costs the worst case unless its client asks for usage.
    `session_hint` is the header (with a hyphen) or body field (without) that gets a name for the
    conversation. `reasoning_field` is the name under which it gets the reasoning of earlier turns;
    by default that of known providers, else that which it uses itself. `thinking_switch` is the
    field by which requests of the Messages API switch its thinking; by default that of known
    providers. `cap_field` is the field that bounds an answer, `call_ids` the form of the ids of
    calls in a history (`short`: at most 40 characters, `nine`: nine letters and digits); by default
    those of known providers, else the client's own. `continues` is how it goes on with an answer
    that another upstream of the same model has begun; by default known providers do, for models of
    the same name.
    """

    base_url: Annotated[str, msgspec.Meta(pattern=_URL)]
    api_key_env: str | None = None
    api_key_file: str | None = None
    connect_s: Seconds = 5.0
    first_token_s: Seconds = 60.0
    read_s: Seconds = 30.0
    answer_s: Seconds = 600.0
    price: PriceConfig | None = None
    max_output_tokens: Positive | None = None
    models: dict[str, TariffConfig] = {}
    limits: LimitsConfig = LimitsConfig()
    stream_usage: bool = True
    session_hint: Annotated[str, msgspec.Meta(pattern=_FIELD_NAME)] | None = None
    reasoning_field: ReasoningField | None = None
    thinking_switch: ThinkingSwitch | None = None
    cap_field: CapField | None = None
    call_ids: CallIdForm | None = None
    continues: Continues = "auto"


class KeyConfig(_Table, frozen=True):
    """`[[keys]]`: an API key by its hash (`herma keys new` prints both). `weight` is its share
    under load. `cache = "private"` keeps its prefixes from other keys, `store = "never"` keeps its
    responses and conversations out of the store, `cloud = "never"` its requests from providers.
    `rate_limit` replaces that of `[gateway]`; an empty table means no limit.
    """

    name: Name
    hash: str
    weight: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    cache: Literal["shared", "private"] = "shared"
    store: Literal["allow", "never"] = "allow"
    cloud: Literal["allow", "never"] = "allow"
    limits: LimitsConfig = LimitsConfig()
    conversation: ConversationLimitsConfig = ConversationLimitsConfig()
    rate_limit: RateLimitConfig | None = None
    admin: bool = False

    def __post_init__(self) -> None:
        if not _KEY_HASH.fullmatch(self.hash):
            raise ValueError("hash must be 'sha256:' and 64 hex digits; `herma keys new` makes one")


class LedgerConfig(_Table, frozen=True):
    """`[ledger]`: the file of usage and cost, and the currency of all prices and limits. By default
    `path` is in the user's state directory. `shared` is the Redis server by which gateways on
    several hosts share spending limits; the environment variable `shared_password_env` holds its
    password. `list_prices` names the prices for models without one: "builtin" is Herma's dated
    list, "none" is no list, anything else is a file of the same form.
    """

    path: str | None = None
    currency: Annotated[str, msgspec.Meta(pattern=_CURRENCY)] = "USD"
    shared: str | None = None
    shared_password_env: str | None = None
    list_prices: str = "builtin"


class LaunchConfig(_Table, frozen=True):
    """`launch = { ... }`: how a worker starts an external engine.
    `argv` is its command line as a list of words, without a shell; `env` is added to the
    environment. `stop` is a command that ends whatever outlives the process, such as
    `["docker", "rm", "-f", "NAME"]`; it runs before the first start and after each end.
    `{version}` in these words stands for the current version of `installation` on this host: the
    directory of an environment, or the reference of an image. `base` is the version until
    `herma upgrade` installs another.
    """

    argv: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    env: dict[str, str] = {}
    cwd: str | None = None
    stop: tuple[str, ...] = ()
    installation: Name | None = None
    base: str | None = None

    def __post_init__(self) -> None:
        words = (*self.argv, *self.stop, *self.env.values(), self.cwd or "")
        has_place = any("{version}" in word for word in words)
        if self.installation == "herma":
            raise ValueError("the installation `herma` is Herma itself; choose another name")
        if has_place and self.installation is None:
            raise ValueError("`{version}` needs `installation`, the name of what is installed")
        if self.installation is not None and not has_place:
            raise ValueError("an `installation` needs `{version}` in argv, where its version goes")
        if self.base is not None and self.installation is None:
            raise ValueError("`base` is the first version of an `installation`, which is missing")


class KvEventsConfig(_Table, frozen=True):
    """`kv_events = { ... }`: the address at which an engine publishes which blocks enter and leave
    its prefix cache, and the one at which it replays missed events. `topic` is the prefix of topics
    to subscribe to; "" is all.
    """

    url: Annotated[str, msgspec.Meta(pattern=_ZMQ_URL)]
    replay: Annotated[str, msgspec.Meta(pattern=_ZMQ_URL)] | None = None
    topic: str = ""


class CacheConfig(_Table, frozen=True):
    """`cache = { ... }`: prefixes beyond the card. `host` is the memory of the host that keeps them
    when the card needs their place, and beyond the engine's life. "auto" is a share of the free
    memory beside a card with memory of its own, and none otherwise.
    """

    host: Annotated[str, msgspec.Meta(pattern=_SIZE)] = "auto"


_SIZE_UNITS: Final = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

TEXT_ENGINE: Final = "openai"
"""Any server with OpenAI's API: it takes and gives text."""

EXTERNAL_ENGINES: Final = frozenset(("vllm", "sglang", "llama-cpp", TEXT_ENGINE))
"""External engines. All except `TEXT_ENGINE` take and give token ids."""

_PUBLISHERS: Final = ("vllm", "sglang")
"""Engines that publish KV events."""

EngineKind = Literal["native", "synthetic", "scripted", "vllm", "sglang", "llama-cpp", "openai"]
ENGINE_KINDS: Final[tuple[str, ...]] = get_args(EngineKind)


_HOST_PORT: Final = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[1-9][0-9]{0,4}$"
PATTERNS[_HOST_PORT] = "HOST:PORT, as 10.0.0.1:29600"

INDEX_DRAFTERS: Final = ("ngram", "suffix")
"""Drafters without weights. "ngram" drafts from the sequence's own text, "suffix" from that of
recent sequences too.
"""

_SHIPPED_DRAFTERS: Final = {"builtin:herma-tiny": "builtin:herma-tiny/mtp"}
"""The drafting networks that come with Herma, by model."""


class SpeculationConfig(_Table, frozen=True):
    """`speculation = { ... }`: what proposes tokens for a step to verify. `drafter` is one of
    `INDEX_DRAFTERS`, or the directory of a drafting network for this model. `depth` is how many
    tokens it drafts at once; "adaptive" is as many as pay. `promised` is the number of tokens per
    pass that the network's model card names; with less than half of it there is a warning.
    """

    drafter: Annotated[str, msgspec.Meta(min_length=1)] = "suffix"
    depth: Annotated[int, msgspec.Meta(ge=1, le=32)] | Literal["adaptive"] = "adaptive"
    promised: Annotated[float, msgspec.Meta(ge=1, le=33)] | None = None


_NATIVE_KEYS: Final = {
    "invariant": False, "prefill": "auto", "speculation": "off", "quantization": "auto",
    "kv_dtype": "auto", "head": "auto", "embedding": "auto", "snapshots": None, "host_bytes": 0,
    "tensor_parallel": 1, "devices": (), "cache": CacheConfig(),
}  # fmt: skip

AlertForm = Literal["json", "ntfy", "slack"]
AlertKindName = Literal[
    "fallback",
    "spending",
    "worker",
    "crash loop",
    "speed loss",
    "provider",
    "request",
    "conversation",
    "turns",
    "store",
]
_QUIET: Final = r"^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$"
_MAC: Final = r"^([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}$"
PATTERNS[_QUIET] = "HH:MM-HH:MM, as 22:00-07:00"
PATTERNS[_MAC] = "a hardware address, as 00:1a:2b:3c:4d:5e"
_ALL_KINDS: Final[tuple[AlertKindName, ...]] = get_args(AlertKindName)


class AlertConfig(_Table, frozen=True):
    """`[[alerts]]`: a receiver of alerts: a `url`, or `url_env` for an address that is a secret, or
    a `command` that gets one JSON object on its standard input. `form` is the form of the body:
    generic JSON, ntfy's or Slack's. `token_env` names the environment variable of a bearer token.
    In the local hours `quiet` ("22:00-07:00") only critical alerts are sent; the others follow as
    one message, and so do alerts beyond `per_hour`.
    """

    name: Name
    url: Annotated[str, msgspec.Meta(pattern=_URL)] | None = None
    url_env: str | None = None
    command: tuple[str, ...] = ()
    form: AlertForm = "json"
    token_env: str | None = None
    kinds: tuple[AlertKindName, ...] = _ALL_KINDS
    per_hour: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 20
    quiet: Annotated[str, msgspec.Meta(pattern=_QUIET)] | None = None


class HostConfig(_Table, frozen=True):
    """`[[hosts]]`: a machine that runs `workers` (by name). When one of `models` falls back to
    providers and none of these workers is registered, a Wake-on-LAN packet goes to `mac`. The
    command `power` runs when its workers were lost and none came back within `power_after_s`.
    """

    name: Name
    workers: tuple[Name, ...]
    models: tuple[Name, ...] = ()
    mac: Annotated[str, msgspec.Meta(pattern=_MAC)] | None = None
    broadcast: str = "255.255.255.255"
    wake_port: Port = 9
    power: tuple[str, ...] = ()
    power_after_s: Seconds = 300.0


class WorkerConfig(_Table, frozen=True):
    """`[[workers]]`: one engine and the model that it serves.

    Model and limits. `model` is a Hugging Face style directory, a hub id or `builtin:herma-tiny`.
    `token_budget` (tokens per step), `max_gap_ms` (how long prompts may delay the next token of an
    answer) and `max_context` come from the model's profile unless set here. The context length is
    the model's, but at most `max_context`; or exactly `context_length`, and then it is an error if
    memory cannot hold it. `kv_tokens` is by default what memory allows, `max_seqs` as many
    sequences as these keys and values suffice for: at most 256 on a card, 16 on a CPU. A model with
    recurrent layers keeps `snapshots` states for prefixes, by default what an eighth of the memory
    holds; one whose layers keep only their window so many windows, by default as many as are of
    use. `cache` keeps prefixes and preempted sequences in the host's memory; `host_bytes` is the
    older name of `cache = { host = ... }`.

    Numbers. `quantization` "fp8" or "int4" keeps the layers' weights in 8 or 4 bits, `head` those
    of the output head; `kv_dtype` "fp8" keeps keys and values in 8 bits; "auto" is as in the
    checkpoint. `embedding` "host" keeps the embedding in page-locked host memory. `prefill` "fp8"
    computes steps of 257 rows and more in 8 bits, with a second form of a 16-bit checkpoint's
    weights, which takes half as much memory again. With `invariant` a sequence's tokens depend only
    on its prompt, parameters and seed, on every worker with that kind of device. `speculation`
    "auto" drafts where that pays, by the MTP head in the checkpoint or of a built-in model, else
    from earlier text; it does not change the sampling.

    Cards. With `tensor_parallel` that many cards of this host compute one model together, each with
    a share of its heads and widths: those of `devices`, by default the first ones. Without it the
    card is `device`.

    Turns. `residency` and `idle_s` are the model's unless set here.

    Starts. A start without progress for `stall_s` has failed. `prepare` lists what is cleared
    before each start: the page cache, and segments in /dev/shm that no process uses. With
    `owns_gpu` a process that still holds memory of `device` between two starts is ended.

    Groups. Workers of one `group` on several hosts are the `ranks` of one engine, each started by
    its own `launch`. Rank 0 has the API and listens for the others at `group_address`. `group_keys`
    has the other ranks' public keys by name, `group_server_key` rank 0's. An engine of ours has no
    `launch` but `tensor_parallel` = `ranks`, one card a host, and `rendezvous`: the address of rank
    0's host at which its ranks meet.

    Links. The worker dials `gateways`, by default that of its file, with the keys of the file or,
    on loopback, those that are made at the first start. `insecure_local`, by default the gateway's,
    lets it dial, and listen for ranks, on this host without keys.

    Other engines. "synthetic" generates a token every `step_ms` without weights, for load tests;
    "scripted" gives the answers in the file `script`, for tests of clients. "vllm", "sglang" and
    "llama-cpp" are external engines at `url`, started by `launch` (the next start waits for the
    memory of the card `device`) or by others. `model` is then the directory with the tokenizer
    files, `max_seqs` the number of sequences that the engine may get at once, `api_key_env` the
    environment variable with its key, and `probe_context` the length of the prompt that it must
    answer before it is ready (0: none). "openai" is any other server with OpenAI's API: it gets
    text, `model` is its own name of the model, and it does not get the fields `refused_fields`.
    `health` is the path that is asked each second; by default one that is known to cost nothing.
    `continues` is how it goes on with an answer that another worker has begun; "auto" tries it out
    at each start.
    """

    name: Name
    model: str
    serves: Name
    gateways: tuple[str, ...]
    token_budget: Positive
    max_gap_ms: Gap | None = None
    engine: EngineKind = "native"
    device: Annotated[str, msgspec.Meta(pattern=_DEVICE)] = "auto"
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    devices: tuple[Annotated[str, msgspec.Meta(pattern=_DEVICE)], ...] = ()
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Literal["auto", "fp8", "int4"] = "auto"
    kv_dtype: Literal["auto", "fp8"] = "auto"
    head: Literal["auto", "fp8", "int4"] = "auto"
    embedding: Literal["auto", "host"] = "auto"
    prefill: Literal["auto", "fp8"] = "auto"
    invariant: bool = False
    speculation: Literal["auto", "off"] | SpeculationConfig = "off"
    kv_tokens: Positive | None = None
    max_seqs: Positive | None = None
    snapshots: Annotated[int, msgspec.Meta(ge=0, le=2**20)] | None = None
    cache: CacheConfig = CacheConfig()
    host_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0
    context_length: Positive | None = None
    max_context: Positive | None = None
    block_size: Literal[16, 32, 64, 128] = 32
    max_waiting: Positive = 64
    threads: Positive | None = None
    step_ms: Annotated[float, msgspec.Meta(ge=0, le=60_000)] = 0.0
    script: str | None = None
    url: Annotated[str, msgspec.Meta(pattern=_ENGINE_URL)] | None = None
    launch: LaunchConfig | None = None
    api_key_env: str | None = None
    refused_fields: tuple[str, ...] = ()
    continues: Continues = "auto"
    health: Annotated[str, msgspec.Meta(pattern=_TARGET)] | None = None
    kv_events: KvEventsConfig | None = None
    probe_context: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 8192
    prepare: tuple[Literal["drop-page-cache", "clear-shm"], ...] = ()
    owns_gpu: bool = False
    residency: Residency = "always"
    idle_s: Seconds | None = None
    group: Name | None = None
    rank: Annotated[int, msgspec.Meta(ge=0, le=1023)] = 0
    ranks: Annotated[int, msgspec.Meta(ge=2, le=1024)] = 2
    group_address: str | None = None
    group_keys: dict[str, str] = {}
    group_server_key: str | None = None
    rendezvous: Annotated[str, msgspec.Meta(pattern=_HOST_PORT)] | None = None
    stall_s: Seconds = 120.0
    drain_s: Seconds = 10.0
    curve_secret_file: str | None = None
    curve_server_key: str | None = None
    insecure_local: bool = False

    def __post_init__(self) -> None:
        if (self.script is not None) != (self.engine == "scripted"):
            raise ValueError('engine = "scripted" and `script` belong together')
        self._check_modes()
        self._check_group()
        self._check_parallel()
        if self.engine in EXTERNAL_ENGINES and self.url is None and not self.rank:
            raise ValueError(f'engine = "{self.engine}" needs `url`, where that engine listens')
        if self.engine not in EXTERNAL_ENGINES:
            given = {"url": self.url, "launch": self.launch, "api_key_env": self.api_key_env}
            given["health"] = self.health
            if key := next((key for key, value in given.items() if value is not None), None):
                known = ", ".join(f'"{name}"' for name in sorted(EXTERNAL_ENGINES))
                raise ValueError(f"`{key}` is only for engine = {known}")
        if self.kv_events is not None and self.engine not in _PUBLISHERS:
            known = " or ".join(f'"{name}"' for name in _PUBLISHERS)
            raise ValueError(f"`kv_events` is only for engine = {known}")
        if self.refused_fields and self.engine != TEXT_ENGINE:
            raise ValueError(f'`refused_fields` is only for engine = "{TEXT_ENGINE}"')
        if self.continues != "auto" and self.engine != TEXT_ENGINE:
            raise ValueError(f'`continues` is only for engine = "{TEXT_ENGINE}"')

    def _check_modes(self) -> None:
        """Raise `ValueError` for modes that exclude each other or that the engine does not have."""
        for key, unset in _NATIVE_KEYS.items() if self.engine != "native" else ():
            if getattr(self, key) != unset:
                raise ValueError(f'`{key}` is for engine = "native", not "{self.engine}"')
        if self.host_bytes and self.cache.host != "auto":
            raise ValueError("`host_bytes` is the older name of `cache.host`: remove `host_bytes`")
        if self.prefill == "fp8" and self.quantization != "auto":
            raise ValueError(
                f'quantization = "{self.quantization}" has no 16-bit weights: remove `prefill`'
            )
        if self.prefill == "fp8" and self.invariant:
            raise ValueError('prefill = "fp8" depends on the batch, so not with `invariant`')

    @property
    def host_cache_bytes(self) -> int | None:
        """The host's memory for prefixes; None for the default."""
        host = self.cache.host
        if host == "auto":
            return self.host_bytes or None
        return 0 if host == "0" else int(host[:-3]) * _SIZE_UNITS[host[-3:]]

    @property
    def drafting(self) -> SpeculationConfig | None:
        """How the engine drafts; None if it does not. With "auto" an MTP head in the checkpoint is
        used instead, if there is one.
        """
        if isinstance(self.speculation, SpeculationConfig):
            return self.speculation
        if self.speculation == "off":
            return None
        return SpeculationConfig(_SHIPPED_DRAFTERS.get(self.model, INDEX_DRAFTERS[-1]))

    @property
    def rank_devices(self) -> tuple[str, ...]:
        """The device of each rank: those of `devices`, else the first cards, or the CPU."""
        if self.devices:
            return self.devices
        if self.device == "cpu":
            return ("cpu",) * self.tensor_parallel
        return tuple([f"cuda:{rank}" for rank in range(self.tensor_parallel)])

    @property
    def host_devices(self) -> tuple[str, ...]:
        """The devices of this host that the engine uses: a rank of a `group` has its own one."""
        if self.tensor_parallel == 1 or self.group is not None:
            return (self.device,)
        return self.rank_devices

    def _check_parallel(self) -> None:
        if self.devices and len(self.devices) != self.tensor_parallel:
            raise ValueError(
                f"`devices` names {len(self.devices)} devices for tensor_parallel = "
                f"{self.tensor_parallel}: name one for each rank"
            )
        if self.tensor_parallel == 1:
            return
        if self.embedding != _NATIVE_KEYS["embedding"]:
            raise ValueError("`embedding` is for one card: remove it, or `tensor_parallel`")

    def _check_group(self) -> None:
        if self.group is None:
            if self.rank or self.group_address is not None or self.rendezvous is not None:
                raise ValueError(
                    "`rank`, `group_address` and `rendezvous` are only for workers of a `group`"
                )
            return
        if self.engine == "native":
            self._check_own_group()
        elif self.engine not in EXTERNAL_ENGINES or self.launch is None:
            raise ValueError(
                'a `group` needs engine = "native", or an external one that is started by `launch`'
            )
        elif self.rendezvous is not None:
            raise ValueError('`rendezvous` is for engine = "native": others have their own in argv')
        if self.group_address is None:
            raise ValueError("`group` needs `group_address`, where rank 0 listens for the others")
        if self.rank >= self.ranks:
            raise ValueError(f"rank {self.rank} is none of {self.ranks} ranks: they count from 0")

    def _check_own_group(self) -> None:
        if self.tensor_parallel != self.ranks:
            raise ValueError(
                "a `group` needs an external engine that is started by `launch`, or as many ranks "
                f"of this one as it has hosts: set tensor_parallel = {self.ranks}, or `ranks`"
            )
        if self.devices:
            raise ValueError("a rank of a `group` has one card: name it in `device`")
        if self.rendezvous is None:
            raise ValueError("`group` of this engine needs `rendezvous`, where its ranks meet")


class Config(_Table, frozen=True):
    """The whole file, with profiles applied and references checked."""

    gateway: GatewayConfig = msgspec.field(default_factory=GatewayConfig)
    models: tuple[ModelConfig, ...] = ()
    providers: dict[str, ProviderConfig] = {}
    keys: tuple[KeyConfig, ...] = ()
    workers: tuple[WorkerConfig, ...] = ()
    alerts: tuple[AlertConfig, ...] = ()
    hosts: tuple[HostConfig, ...] = ()
    ledger: LedgerConfig = LedgerConfig()
    limits: AllLimitsConfig = AllLimitsConfig()
    loops: LoopsConfig = LoopsConfig()
    repairs: tuple[RepairConfig, ...] = ()

    def worker(self, name: str) -> WorkerConfig | None:
        return next((worker for worker in self.workers if worker.name == name), None)
