"""A reload of a gateway's file: prepared as a whole, then taken in one go."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from config import hash_api_key, parse_config
from gateway.app import edge_of
from gateway.http.routes import edge_app
from gateway.reload import Commit, Config, Reload
from gateway.turn.services import Services
from protocol.errors import ConfigError
from tests.fakes.asgi import chat_body
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import open_gateway
from tests.fakes.served import Reply, ask, served

CHAT = "/v1/chat/completions"

FILE = """
[gateway]
worker_bind = "tcp://127.0.0.1:*"
insecure_local = true
rejoin_wait_s = 0.1
{gateway}

[[models]]
name = "alpha"
fallback = [{{ provider = "far", model = "far-large" }}]

[providers.far]
base_url = "{url}"
api_key_file = "{key_file}"
first_token_s = {first_token_s}
"""


class _Reloading:
    """A gateway that serves over HTTP, its file, and its provider."""

    def __init__(self, folder: Path, provider: FakeProvider) -> None:
        self._path = folder / "herma.toml"
        self.key_file = folder / "key"
        self.key_file.write_text("sk-first")
        self.provider = provider
        self.url = ""
        self.services: Services
        self.reload: Reload
        self.write()

    def write(self, more: str = "", *, gateway: str = "", first_token_s: float = 10.0) -> None:
        text = FILE.format(
            gateway=gateway,
            url=self.provider.base_url,
            key_file=self.key_file,
            first_token_s=first_token_s,
        )
        self._path.write_text(text + more)

    def read(self) -> Config:
        return parse_config(self._path.read_text(), "herma.toml")

    async def ask(self, **headers: str) -> Reply:
        return await ask(self.url, "POST", CHAT, chat_body(stream=False), **headers)

    def sent_keys(self) -> list[str]:
        return [one.headers["authorization"] for one in self.provider.requests]


@asynccontextmanager
async def _reloading(tmp_path: Path, *parts: object) -> AsyncIterator[_Reloading]:
    async with open_provider() as provider:
        one = _Reloading(tmp_path, provider)
        config = one.read()
        keys = {"models": config.models, "providers": config.providers, "rejoin_wait_s": 0.1}
        async with open_gateway(**keys) as gateway:  # type: ignore[arg-type]
            one.services = gateway.services
            edge = edge_of(one.services)
            one.reload = Reload(one.services, edge.settings, one.read, {}, parts)  # type: ignore[arg-type]
            async with served(edge_app(edge)) as one.url:
                yield one


async def test_a_key_file_is_read_again(tmp_path: Path) -> None:
    """A key file is read again: its path is the same, so no change is named, and the next request
    carries the new key.
    """
    async with _reloading(tmp_path) as one:
        assert (await one.ask()).status == 200
        one.key_file.write_text("sk-second")
        await one.reload.take()
        assert (await one.ask()).status == 200
        assert one.sent_keys() == ["Bearer sk-first", "Bearer sk-second"]


@pytest.mark.parametrize(
    ("gateway", "more", "says"),
    [
        ("", "[[keys]]\nname = 'k'\nhash = 'x'\n", "herma.toml:"),
        ("", "[providers.near]\nbase_url = 'http://x'\napi_key_env = 'MISSING'\n", "MISSING"),
        ("curve_secret_file = '/nowhere'", "", "/nowhere"),
        ("max_queue = -1", "", "max_queue"),
    ],
)
async def test_a_mistake_changes_nothing(
    tmp_path: Path, gateway: str, more: str, says: str
) -> None:
    """A mistake changes nothing, not even what the file has right: a key that would have been
    rotated stays.
    """
    async with _reloading(tmp_path) as one:
        if "curve" in gateway:
            before = one.services.config
            held = type(before.gateway)(curve_secret_file="/nowhere", worker_bind="ipc:///x")
            one.services.config = type(before)(gateway=held, models=before.models)
        config = one.services.config
        one.key_file.write_text("sk-second")
        one.write(more, gateway=gateway, first_token_s=3.0)
        with pytest.raises(ConfigError, match=says):
            await one.reload.take()
        assert one.services.config is config
        assert (await one.ask()).status == 200
        assert one.sent_keys() == ["Bearer sk-first"]


async def test_a_part_that_cannot_be_prepared_stops_all(tmp_path: Path) -> None:
    """A part that cannot be prepared, as a certificate that is wrong, stops all; parts are
    committed only when all are prepared.
    """
    committed: list[str] = []

    def good(config: Config) -> Commit:
        return lambda: committed.append(config.models[0].name)

    def bad(config: Config) -> Commit:
        if config.gateway.max_queue == 3:
            raise ConfigError("the certificate has expired")
        return lambda: committed.append("bad")

    async with _reloading(tmp_path, good, bad) as one:
        one.write(gateway="max_queue = 3")
        with pytest.raises(ConfigError, match="expired"):
            await one.reload.take()
        assert not committed
        one.write(gateway="max_queue = 4")
        await one.reload.take()
        assert committed == ["alpha", "bad"]


async def test_a_request_at_a_provider_outlives_its_table(tmp_path: Path) -> None:
    """The provider is gone from the file while it answers; the answer comes whole, and later ones
    go elsewhere.
    """
    async with _reloading(tmp_path) as one, trio.open_nursery() as nursery:
        one.provider.go_on = trio.Event()
        replies: list[Reply] = []

        async def read() -> None:
            reply = await ask(one.url, "POST", CHAT, chat_body(stream=True))
            replies.append(reply)

        nursery.start_soon(read)
        while not one.provider.requests:  # noqa: ASYNC110
            await trio.sleep(0.01)
        one._path.write_text("[[models]]\nname = 'alpha'\n[[models]]\nname = 'beta'\n")
        taken = await one.reload.take()
        assert set(taken.taken) >= {"model `alpha`", "provider `far` (gone)"}
        assert not replies
        assert (await one.ask()).status == 503
        assert one.services.health.open_names() == {}
        one.provider.go_on.set()
    assert replies[0].status == 200
    assert b"afar" in replies[0].body
    assert replies[0].body.endswith(b"data: [DONE]\n\n")


async def test_keys_and_origins_count_for_the_next_request(tmp_path: Path) -> None:
    """A key that is taken out is unknown at once."""
    origin = {"origin": "https://chat.example"}
    async with _reloading(tmp_path) as one:
        assert (await one.ask(**origin)).status == 403
        key = f"[[keys]]\nname = 'k'\nhash = '{hash_api_key('sk-1')}'\n"
        one.write(key, gateway="allowed_origins = ['https://chat.example/']")
        await one.reload.take()
        assert (await one.ask(**origin)).status == 401
        assert (await one.ask(**origin, authorization="Bearer sk-1")).status == 200
        one.write()
        await one.reload.take()
        assert (await one.ask()).status == 200
        assert (await one.ask(**origin)).status == 403


async def test_reloads_wait_for_each_other(tmp_path: Path) -> None:
    """Reloads wait for each other: of two at the same time the second finds nothing to take."""
    async with _reloading(tmp_path) as one:
        one.write(gateway="keep_alive_s = 3")
        taken: list[tuple[str, ...]] = []

        async def take() -> None:
            taken.append((await one.reload.take()).taken)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(take)
        assert sorted(map(len, taken)) == [0, 1]
        assert one.services.config.gateway.keep_alive_s == 3
