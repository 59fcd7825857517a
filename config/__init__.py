"""Every knob, typed: one TOML file, decoded strictly into frozen structs."""

from config.defaults import BUILTIN_MODEL, builtin_config
from config.load import load_config, parse_config
from config.model import (
    Config,
    FallbackConfig,
    GatewayConfig,
    KeyConfig,
    ModelConfig,
    ProviderConfig,
    WorkerConfig,
)
from config.secrets import hash_api_key, provider_api_key

__all__ = [
    "BUILTIN_MODEL",
    "Config",
    "FallbackConfig",
    "GatewayConfig",
    "KeyConfig",
    "ModelConfig",
    "ProviderConfig",
    "WorkerConfig",
    "builtin_config",
    "hash_api_key",
    "load_config",
    "parse_config",
    "provider_api_key",
]
