"""`[[models]]`: a model's public name, the providers behind it, and changes of its requests.

Must not know the tables of its workers, which say by `serves` what they serve.
"""

from collections.abc import Iterable
from typing import Any, Literal

from config.tables.providers import CallIdForm, CapField, ReasoningField, ThinkingSwitch
from config.tables.values import Alias, ConfigTable, Gap, Name, Positive, Seconds

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


class ParamsConfig(ConfigTable, frozen=True):
    """`params = { ... }`: rewrites the fields of requests. `drop` removes fields, `default` sets
    fields that the client has not set, `set` sets fields in any case.
    """

    set: dict[str, Any] = {}
    default: dict[str, Any] = {}
    drop: tuple[str, ...] = ()


class FallbackConfig(ConfigTable, frozen=True):
    """`[[models.fallback]]`: a provider of the file, the model's name there, and how requests for
    it are rewritten.
    """

    provider: Name
    model: str
    params: ParamsConfig = ParamsConfig()


class ModelConfig(ConfigTable, frozen=True):
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
