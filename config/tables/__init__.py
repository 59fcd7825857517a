"""The tables of the file as frozen structs: names, defaults and bounds of every key."""

from config.tables.alerts import AlertConfig, AlertKind, HostConfig
from config.tables.conversations import (
    AllLimitsConfig,
    ConversationLimitsConfig,
    LoopsConfig,
    RepairConfig,
)
from config.tables.file import Config
from config.tables.gateway import GatewayConfig, RateLimitConfig, ResponsesConfig, TracesConfig
from config.tables.keys import KeyConfig
from config.tables.models import (
    FallbackConfig,
    ModelConfig,
    ParamsConfig,
    ReasoningParserName,
    ToolParserName,
    wildcard_of,
)
from config.tables.providers import (
    LedgerConfig,
    LimitsConfig,
    PriceConfig,
    ProviderConfig,
    TariffConfig,
)
from config.tables.values import NAME_IN_WORDS, PATTERNS, Name
from config.tables.workers import (
    DUMMY_PREFIX,
    ENGINE_KINDS,
    EXTERNAL_ENGINES,
    INDEX_DRAFTERS,
    TEXT_ENGINE,
    CacheConfig,
    KvEventsConfig,
    LaunchConfig,
    SpeculationConfig,
    WorkerConfig,
)
