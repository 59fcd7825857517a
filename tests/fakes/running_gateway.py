"""The gateway's actors without HTTP: what a test asks is a turn, what it gets are events."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import trio

from config import (
    Config,
    FallbackConfig,
    GatewayConfig,
    KeyConfig,
    LedgerConfig,
    ModelConfig,
    ProviderConfig,
)
from gateway.api.chat_parser import parse_chat_request
from gateway.api.errors import ApiError
from gateway.api.events import (
    ChoiceFinished,
    Failed,
    Started,
    TextDelta,
    TurnEvent,
    UpstreamBody,
    UpstreamChunk,
    Usage,
)
from gateway.app import build_services, running
from gateway.gateway_index import ALONE, GatewayIndex
from gateway.turn.caller import Caller
from gateway.turn.services import Services
from gateway.turn.turn import answer_request
from tests.fakes.provider import KEY, FakeProvider
from tests.fakes.worker import PATIENCE_S


class Asked:
    """One turn and the events that it has emitted so far."""

    def __init__(self, services: Services, caller: Caller, body: dict[str, Any]) -> None:
        self._services = services
        self._caller = caller
        self._request = parse_chat_request(msgspec.json.encode(body))
        self._news = trio.Event()
        self.events: list[TurnEvent] = []
        self.over = trio.Event()
        self.scope = trio.CancelScope()

    async def run(self) -> "Asked":
        with self.scope:
            await answer_request(self._services, self._request, self._caller, self._emit)
        self.over.set()
        return self

    def _emit(self, event: TurnEvent) -> None:
        self.events.append(event)
        self._news.set()
        self._news = trio.Event()

    def all_of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def wait_text(self, num_chars: int = 1) -> str:
        """The text so far, once it has that many characters."""
        with trio.fail_after(PATIENCE_S):
            while len(self.text) < num_chars:
                await self._news.wait()
        return self.text

    @property
    def text(self) -> str:
        return self.text_of(0)

    def text_of(self, index: int) -> str:
        return "".join(delta.text for delta in self.all_of(TextDelta) if delta.index == index)

    @property
    def started(self) -> Started:
        started: Started = self.all_of(Started)[-1]
        return started

    @property
    def usage(self) -> Usage:
        (usage,) = self.all_of(Usage)
        assert isinstance(usage, Usage)
        return usage

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.all_of(ChoiceFinished)]

    @property
    def error(self) -> ApiError | None:
        failed = self.all_of(Failed)
        return failed[0].error if failed else None

    @property
    def upstream(self) -> bytes:
        chunks = b"".join(event.data for event in self.all_of(UpstreamChunk))
        return chunks + b"".join(event.body for event in self.all_of(UpstreamBody))


class RunningGateway:
    """Running services, and the address that workers dial."""

    def __init__(self, services: Services, address: str, nursery: trio.Nursery) -> None:
        self.services = services
        self.address = address
        self._nursery = nursery

    def start(self, caller: Caller | None = None, **fields: Any) -> Asked:
        """Start a turn; `fields` of the body have defaults."""
        body = {"model": "alpha", "messages": [{"role": "user", "content": "Hi"}], **fields}
        asked = Asked(self.services, caller or Caller(), body)
        self._nursery.start_soon(asked.run)
        return asked

    async def ask(self, caller: Caller | None = None, **fields: Any) -> Asked:
        """A whole turn."""
        asked = self.start(caller, **fields)
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        return asked

    async def wait_state(self, state: str, model: str = "alpha") -> None:
        """Return once the model's state is `state`."""

        def reached() -> bool:
            view = self.services.dispatcher.model(model)
            return view is not None and view.state == state

        await wait_until(reached)

    async def wait_local(self, model: str = "alpha") -> None:
        """Return once workers answer for the model, and no provider does."""

        def reached() -> bool:
            view = self.services.dispatcher.model(model)
            return view is not None and view.state == "ready" and not view.is_away

        await wait_until(reached)

    async def wait_workers(self, count: int) -> None:
        """Return once that many workers are ready."""
        await wait_until(lambda: self.services.dispatcher.statistics().ready_workers == count)


async def wait_until(holds: Callable[[], bool]) -> None:
    """Return once `holds` does."""
    with trio.fail_after(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - nobody announces what is awaited
            await trio.sleep(0.005)


@asynccontextmanager
async def open_gateway(
    *,
    models: Sequence[ModelConfig] = (ModelConfig(name="alpha"),),
    providers: dict[str, ProviderConfig] | None = None,
    keys: Sequence[KeyConfig] = (),
    ledger: Path | None = None,
    list_prices: str = "builtin",
    gateway_index: GatewayIndex = ALONE,
    **gateway: Any,
) -> AsyncIterator[RunningGateway]:
    """A gateway's actors on a free port, for the length of the block. Without a path its ledger is
    thrown away.
    """
    with TemporaryDirectory() as folder:
        config = Config(
            gateway=GatewayConfig(
                **{"worker_bind": "tcp://127.0.0.1:*", "insecure_local": True, **gateway}
            ),
            models=tuple(models),
            providers=providers or {},
            keys=tuple(keys),
            ledger=LedgerConfig(
                path=str(ledger or Path(folder) / "ledger.sqlite"), list_prices=list_prices
            ),
        )
        services = build_services(config, {"PROVIDER_KEY": KEY}, gateway_index)
        async with running(services) as address, trio.open_nursery() as nursery:
            yield RunningGateway(services, address, nursery)
            nursery.cancel_scope.cancel()


def chain_of(
    providers: dict[str, FakeProvider], *, first_token_s: float = 10.0, read_s: float = 10.0
) -> tuple[ModelConfig, dict[str, ProviderConfig]]:
    """The model `alpha` with these providers as its fallback, and their tables."""
    fallback = tuple(FallbackConfig(provider=name, model=f"{name}-large") for name in providers)
    tables = {
        name: ProviderConfig(
            base_url=fake.base_url,
            api_key_env="PROVIDER_KEY",
            first_token_s=first_token_s,
            read_s=read_s,
        )
        for name, fake in providers.items()
    }
    return ModelConfig(name="alpha", fallback=fallback), tables
