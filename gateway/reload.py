"""Reload: applies a changed configuration file while the gateway serves.

Owns the order: read the file, prepare every change that can fail, then commit all changes without
an await, so that a mistake in the file changes nothing. Requests that run keep the parts of the old
configuration that they hold. Must not know how a request is served.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, final

import trio

from config import Config, gateway_changes, provider_api_key, providers_alone
from gateway.api.alias_params import check_aliases
from gateway.http import EdgeSettings
from gateway.telemetry import ConfigReloaded
from gateway.turn import Services, read_model_prompts
from gateway.upstream import Provider
from housekeeping.audit import Act
from housekeeping.signals import hangups
from protocol.control_messages import Reloaded
from protocol.errors import ConfigError
from protocol.transport import load_curve_server

_log: Final = logging.getLogger(__name__)

Commit = Callable[[], None]
"""Makes a prepared change; must not fail."""

Prepare = Callable[[Config], Commit]
"""Prepares the change of one part, in a thread. Raises `ConfigError` if the part cannot change."""


@final
class Reload:
    """`read` reads the configuration of this process from the file; it blocks, and raises
    `ConfigError`. `parts` prepare further changes: parts that read other files, such as keys.
    """

    def __init__(
        self,
        services: Services,
        settings: EdgeSettings,
        read: Callable[[], Config],
        environ: Mapping[str, str],
        parts: tuple[Prepare, ...] = (),
    ) -> None:
        self._services = services
        self._settings = settings
        self._read = read
        self._environ = environ
        self._parts = (
            self._prepare_providers,
            self._prepare_worker_keys,
            self._prepare_prompts,
            *parts,
        )
        self._lock = trio.Lock()

    async def run_at_signals(self) -> None:
        """Reload at each SIGHUP until cancelled."""
        async for _ in hangups():
            try:
                reloaded = await self.take()
            except ConfigError as error:
                _log.error("nothing is reloaded: %s", error)
                result = f"refused: {error}"
            else:
                result = reloaded.summary
            self._services.audit.note(Act("reload", "SIGHUP", result))

    async def take(self) -> Reloaded:
        """Apply the file as it is now. Raises `ConfigError` with one line if the file is wrong, and
        has then changed nothing.
        """
        async with self._lock:
            services = self._services
            read = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)
            changes = gateway_changes(services.config, read)
            config = changes.config
            commits = await trio.to_thread.run_sync(self._prepared, config, abandon_on_cancel=True)
            for refusal in (
                services.dispatcher.refusal_of(config.models),
                services.spending.refusal_of(config),
            ):
                if refusal is not None:
                    raise ConfigError(refusal)
            for commit in commits:
                commit()
            self._apply(config)
        reloaded = Reloaded(changes.taken, changes.kept)
        self._publish(reloaded)
        return reloaded

    def _publish(self, reloaded: Reloaded) -> None:
        """Log and publish what has changed."""
        _log.info("reloaded: %s", ", ".join(reloaded.taken) or "nothing that this process has")
        if reloaded.kept:
            _log.warning("only a restart takes the file's %s", ", ".join(reloaded.kept))
        self._services.feed.publish(ConfigReloaded(reloaded.taken, reloaded.kept))

    def _prepared(self, config: Config) -> list[Commit]:
        check_aliases(config.models)
        return [prepare(config) for prepare in self._parts]

    def _apply(self, config: Config) -> None:
        services = self._services
        services.config = config
        services.spending.reconfigure(config)
        services.conversation_tracker.reconfigure(config)
        services.open_turns.grace_s = config.gateway.disconnect_grace_s
        self._settings.take(config)
        services.dispatcher.reconfigure(config.gateway, config.models)
        services.dispatcher.note_workerless(providers_alone(config))

    def _prepare_providers(self, config: Config) -> Commit:
        """New clients for providers whose table or key has changed. Key files are always read."""
        before, services = self._services.providers, self._services
        changed: dict[str, Provider] = {}
        for name, table in config.providers.items():
            key = provider_api_key(name, table, self._environ)
            if name not in services.config.providers or not before[name].is_of(table, key):
                changed[name] = Provider(name, table, key)

        def commit() -> None:
            gone = services.config.providers.keys() - config.providers.keys()
            for name in (*gone, *changed):
                if name in before:
                    before[name].retire()
            before.update(changed)
            services.health.reconfigure(config.providers, changed)

        return commit

    def _prepare_prompts(self, config: Config) -> Commit:
        """Prepare what the file says of prompts. Files of templates are read again even if their
        path is the same.
        """
        prompts = read_model_prompts(config.models)

        def commit() -> None:
            self._services.prompts = prompts

        return commit

    def _prepare_worker_keys(self, config: Config) -> Commit:
        gateway = config.gateway
        if gateway.curve_secret_file is None:
            return _nothing
        keys = load_curve_server(gateway.curve_secret_file, gateway.curve_worker_keys)
        return lambda: self._services.link.accept_keys(keys.worker_keys)


def _nothing() -> None:
    """The `Commit` of a part without a change."""
