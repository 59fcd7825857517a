"""The whole file: which tables it has. Must not read files or the environment."""

import msgspec

from config.tables.alerts import AlertConfig, HostConfig
from config.tables.conversations import AllLimitsConfig, LoopsConfig, RepairConfig
from config.tables.gateway import GatewayConfig
from config.tables.keys import KeyConfig
from config.tables.models import ModelConfig
from config.tables.providers import LedgerConfig, ProviderConfig
from config.tables.values import ConfigTable
from config.tables.workers import WorkerConfig


class Config(ConfigTable, frozen=True):
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
