"""The configuration: one TOML file, decoded strictly into frozen structs."""

from config.addresses import dials_made_keys, takes_made_keys
from config.builtin_models import (
    BUILTIN_PREFIX,
    DEFAULT_PROFILE,
    builtin_config,
    builtin_drafters,
    builtin_models,
    is_hub_id,
    no_builtin,
    no_drafter,
    no_model,
    profiles,
)
from config.changes import gateway_changes
from config.cloud_models import providers_alone
from config.environment import (
    audit_path,
    clear_password,
    hash_api_key,
    ledger_path,
    provider_api_key,
    responses_path,
    secret_of,
    signing_key_path,
)
from config.found_file import FILE_NAME, found_config
from config.list_prices import ListPrices, list_prices, listed_price
from config.load import find_mistakes, load_config, parse_config, read_text, with_gateway
from config.mistakes import Place, line_of
from config.places import keys_dir, make_place, state_dir, worker_address
from config.reference import reference
from config.tables import (
    DUMMY_PREFIX,
    ENGINE_KINDS,
    EXTERNAL_ENGINES,
    INDEX_DRAFTERS,
    TEXT_ENGINE,
    AlertConfig,
    AlertKind,
    AllLimitsConfig,
    CacheConfig,
    Config,
    ConversationLimitsConfig,
    FallbackConfig,
    GatewayConfig,
    HostConfig,
    KeyConfig,
    KvEventsConfig,
    LaunchConfig,
    LedgerConfig,
    LimitsConfig,
    LoopsConfig,
    ModelConfig,
    Name,
    ParamsConfig,
    PriceConfig,
    ProviderConfig,
    RateLimitConfig,
    ReasoningParserName,
    RepairConfig,
    ResponsesConfig,
    SpeculationConfig,
    TariffConfig,
    ToolParserName,
    TracesConfig,
    WorkerConfig,
    wildcard_of,
)
