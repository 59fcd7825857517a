"""`[[workers]]`: one engine, native or external, and the model that it serves.

Owns which keys go together for which engine. Measured facts (the number of KV blocks) are results,
not configuration.
"""

from typing import Annotated, Final, Literal, get_args

import msgspec

from config.tables.models import Residency
from config.tables.providers import Continues
from config.tables.values import (
    ConfigTable,
    Device,
    EngineUrl,
    Gap,
    HostPort,
    Name,
    Positive,
    Seconds,
    Size,
    Target,
    ZmqUrl,
)

DUMMY_PREFIX: Final = "dummy:"
"""Models without weights and tokenizer, only for `herma bench engine`."""


class LaunchConfig(ConfigTable, frozen=True):
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


class KvEventsConfig(ConfigTable, frozen=True):
    """`kv_events = { ... }`: the address at which an engine publishes which blocks enter and leave
    its prefix cache, and the one at which it replays missed events. `topic` is the prefix of topics
    to subscribe to; "" is all.
    """

    url: ZmqUrl
    replay: ZmqUrl | None = None
    topic: str = ""


class CacheConfig(ConfigTable, frozen=True):
    """`cache = { ... }`: prefixes beyond the card. `host` is the memory of the host that keeps them
    when the card needs their place, and beyond the engine's life. "auto" is none for now, as is
    "0".
    """

    host: Size = "auto"


_SIZE_UNITS: Final = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

TEXT_ENGINE: Final = "openai"
"""Any server with OpenAI's API: it takes and gives text."""

EXTERNAL_ENGINES: Final = frozenset(("vllm", "sglang", "llama-cpp", TEXT_ENGINE))
"""External engines. All except `TEXT_ENGINE` take and give token ids."""

_PUBLISHERS: Final = ("vllm", "sglang")
"""Engines that publish KV events."""

EngineKind = Literal["native", "synthetic", "scripted", "vllm", "sglang", "llama-cpp", "openai"]
ENGINE_KINDS: Final[tuple[str, ...]] = get_args(EngineKind)


INDEX_DRAFTERS: Final = ("ngram", "suffix")
"""Drafters without weights. "ngram" drafts from the sequence's own text, "suffix" from that of
recent sequences too.
"""

_SHIPPED_DRAFTERS: Final = {"builtin:herma-tiny": "builtin:herma-tiny/mtp"}
"""The drafting networks that come with Herma, by model."""


class SpeculationConfig(ConfigTable, frozen=True):
    """`speculation = { ... }`: what proposes tokens for a step to verify. `drafter` is "ngram" or
    "suffix", which draft from earlier text, or the directory of a drafting network for this model.
    `depth` is how many tokens it drafts at once; "adaptive" is as many as pay. `promised` is the
    number of tokens per pass that the network's model card names; with less than half of it there
    is a warning.
    """

    drafter: Annotated[str, msgspec.Meta(min_length=1)] = "suffix"
    depth: Annotated[int, msgspec.Meta(ge=1, le=32)] | Literal["adaptive"] = "adaptive"
    promised: Annotated[float, msgspec.Meta(ge=1, le=33)] | None = None


_RANKS: Final = 2
_NATIVE_KEYS: Final = {
    "invariant": False, "prefill": "auto", "speculation": "off", "quantization": "auto",
    "kv_dtype": "auto", "head": "auto", "embedding": "auto", "snapshots": None, "host_bytes": 0,
    "tensor_parallel": 1, "devices": (), "cache": CacheConfig(), "dtype": "auto", "threads": None,
}  # fmt: skip


class WorkerConfig(ConfigTable, frozen=True):
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
    device: Device = "auto"
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    devices: tuple[Device, ...] = ()
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
    url: EngineUrl | None = None
    launch: LaunchConfig | None = None
    api_key_env: str | None = None
    refused_fields: tuple[str, ...] = ()
    continues: Continues = "auto"
    health: Target | None = None
    kv_events: KvEventsConfig | None = None
    probe_context: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 8192
    prepare: tuple[Literal["drop-page-cache", "clear-shm"], ...] = ()
    owns_gpu: bool = False
    residency: Residency = "always"
    idle_s: Seconds | None = None
    group: Name | None = None
    rank: Annotated[int, msgspec.Meta(ge=0, le=1023)] = 0
    ranks: Annotated[int, msgspec.Meta(ge=2, le=1024)] = _RANKS
    group_address: str | None = None
    group_keys: dict[str, str] = {}
    group_server_key: str | None = None
    rendezvous: HostPort | None = None
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
        if self.step_ms and self.engine != "synthetic":
            raise ValueError(f'`step_ms` is for engine = "synthetic", not "{self.engine}"')
        if self.max_gap_ms is not None and self.engine in EXTERNAL_ENGINES:
            raise ValueError(f'`max_gap_ms` is for our own engines, not "{self.engine}"')
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

    @property
    def is_attached(self) -> bool:
        """Whether the engine is a program that others start and end."""
        return self.engine in EXTERNAL_ENGINES and self.launch is None

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
            given = {
                "rank": self.rank != 0,
                "ranks": self.ranks != _RANKS,
                "group_address": self.group_address is not None,
                "rendezvous": self.rendezvous is not None,
            }
            if key := next((key for key, is_given in given.items() if is_given), None):
                raise ValueError(f"`{key}` is only for workers of a `group`")
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
