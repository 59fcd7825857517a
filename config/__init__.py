"""The configuration: one TOML file, decoded strictly into frozen structs."""

from config.defaults import (
    BUILTIN_MODEL,
    BUILTIN_PREFIX,
    builtin_config,
    builtin_models,
    is_hub_id,
    no_builtin,
)
from config.environment import hash_api_key, ledger_path, provider_api_key
from config.load import load_config, parse_config, with_gateway
from config.model import (
    DUMMY_PREFIX,
    Config,
    FallbackConfig,
    GatewayConfig,
    KeyConfig,
    LedgerConfig,
    LimitsConfig,
    ModelConfig,
    Name,
    ParamsConfig,
    PriceConfig,
    ProviderConfig,
    TariffConfig,
    WorkerConfig,
)

__all__ = [
    "BUILTIN_MODEL",
    "BUILTIN_PREFIX",
    "DUMMY_PREFIX",
    "Config",
    "FallbackConfig",
    "GatewayConfig",
    "KeyConfig",
    "LedgerConfig",
    "LimitsConfig",
    "ModelConfig",
    "Name",
    "ParamsConfig",
    "PriceConfig",
    "ProviderConfig",
    "TariffConfig",
    "WorkerConfig",
    "builtin_config",
    "builtin_models",
    "hash_api_key",
    "is_hub_id",
    "ledger_path",
    "load_config",
    "no_builtin",
    "parse_config",
    "provider_api_key",
    "with_gateway",
]
