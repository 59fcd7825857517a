"""`[gateway]` with its parts: addresses, time limits, bounds, files, stored responses, traces.

Must not know models, providers or keys.
"""

import os
from typing import Annotated, Literal

import msgspec

from config.places import worker_address
from config.tables.values import (
    Bytes,
    ConfigTable,
    HangSeconds,
    HttpUrl,
    PassedPath,
    Pause,
    Percent,
    Port,
    Positive,
    Processes,
    Seconds,
)


class ResponsesConfig(ConfigTable, frozen=True):
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


class RateLimitConfig(ConfigTable, frozen=True):
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


class TracesConfig(ConfigTable, frozen=True):
    """`[gateway.traces]`: the collector that gets a span per request, by OTLP over HTTP. `sample`
    is the recorded share of requests. One whose client names a span is recorded if that span is.
    """

    endpoint: HttpUrl
    sample: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


def _own_address() -> str:
    return worker_address("", os.environ)


class GatewayConfig(ConfigTable, frozen=True):
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
