"""The dashboard of a running gateway, read over HTTP.

Owns the requests, the stream and the data received so far. Must not know terminals or how a frame
looks.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar, final
from urllib.parse import quote

import msgspec

from gateway.conversations import ConversationList, PrefixList
from gateway.dashboard import DashboardState, EventLog, EventRow, Overview
from gateway.telemetry import HistorySample
from gateway.upstream import ProviderEventSplitter
from protocol.errors import ConfigError, ConnectError, HermaError
from protocol.reading import FAULTS
from protocol.transport import HttpClient, HttpResponse

T = TypeVar("T")

_CONNECT_S: Final = 5.0
_READ_S: Final = 10.0
_REFUSED: Final = frozenset({401, 403})
_MAX_SAMPLES: Final = 720
_MAX_QUOTED: Final = 200
"""Bytes of a foreign answer."""
_MAX_EVENTS: Final = 200

_decode_conversations = msgspec.json.Decoder(ConversationList).decode
_decode_prefixes = msgspec.json.Decoder(PrefixList).decode
_decode_state = msgspec.json.Decoder(DashboardState).decode
_decode_overview = msgspec.json.Decoder(Overview).decode
_decode_log = msgspec.json.Decoder(EventLog).decode
_decode_samples = msgspec.json.Decoder(list[HistorySample]).decode


def admin_key(key_env: str | None, environ: Mapping[str, str]) -> str | None:
    """The key in the variable that `--key-env` names. Raises `ConfigError` if it is not set."""
    if key_env is None:
        return None
    if key := environ.get(key_env):
        return key
    raise ConfigError(f"--key-env names {key_env}, which is not set in the environment")


@final
class TopData:
    """The data received so far."""

    def __init__(self) -> None:
        self.overview: Overview | None = None
        self.samples: deque[HistorySample] = deque(maxlen=_MAX_SAMPLES)
        self.events: deque[EventRow] = deque(maxlen=_MAX_EVENTS)

    @classmethod
    def of(cls, state: DashboardState) -> "TopData":
        shown = cls()
        shown.overview = state.overview
        shown.samples.extend(state.history)
        shown.events.extend(state.events)
        return shown

    def take(self, name: str, data: bytes) -> None:
        """Take an event of the stream. Raises one of `FAULTS` for one of another version."""
        match name:
            case "state":
                self.overview = _decode_overview(data)
            case "history":
                self.samples.extend(_decode_samples(data))
            case "log":
                last = self.events[-1].number if self.events else 0
                self.events.extend(one for one in _decode_log(data).events if one.number > last)
            case _:
                pass  # an event of a newer gateway


@final
class GatewayPage:
    """`/dashboard` of the gateway at `url`. Raises `ConfigError` if the address is invalid."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        try:
            self._client = HttpClient(self.url, max_connections=1)
        except ValueError as error:
            raise ConfigError(f"--url takes a URL as http://127.0.0.1:8080, not {url!r}") from error
        self._headers = [(b"user-agent", b"herma-top")]
        if api_key is not None:
            self._headers.append((b"authorization", f"Bearer {api_key}".encode()))

    def close(self) -> None:
        self._client.close()

    async def state(self) -> tuple[DashboardState, bytes]:
        """The whole state once, decoded and as bytes. Raises `HermaError`."""
        body = await self._body_of("/dashboard/state")
        return self._decoded(_decode_state, body), body

    async def conversations(self, name: str) -> tuple[ConversationList, bytes]:
        """The conversations of the gateway, or those of a name and those that they began; decoded
        and as bytes. Raises `HermaError`.
        """
        path = "/admin/conversations" + (f"?name={quote(name, safe='')}" if name else "")
        missing = f"the gateway at {self.url} knows no conversation {name}"
        body = await self._body_of(path, missing)
        return self._decoded(_decode_conversations, body), body

    async def prefixes(self) -> tuple[PrefixList, bytes]:
        """What breaks the prefixes of prompts, decoded and as bytes. Raises `HermaError`."""
        body = await self._body_of("/admin/prefixes", f"{self.url} is an older gateway")
        return self._decoded(_decode_prefixes, body), body

    def _decoded(self, decode: Callable[[bytes], T], body: bytes) -> T:
        try:
            return decode(body)
        except FAULTS as error:
            raise self._foreign(error) from error

    async def _body_of(self, path: str, missing: str = "") -> bytes:
        """The answer at `path`. Raises `HermaError`, with `missing` for a 404 if that is given."""
        try:
            async with self._ask(path) as response:
                body = b"".join([part async for part in response.body])
                if missing and response.status == 404:
                    raise HermaError(missing)
                self._check(response, body)
        except ConnectError as error:
            raise HermaError(
                f"no gateway answers at {self.url} ({error}); start one with `herma up`, or name "
                "another with --url"
            ) from error
        return body

    async def follow(self, shown: TopData, on_news: Callable[[], None]) -> None:
        """Keep `shown` up to date while the stream lasts; call `on_news` after each change. Raises
        `HermaError`.
        """
        async with self._ask("/dashboard/stream") as response:
            if response.status != 200:
                self._check(response, b"".join([part async for part in response.body]))
            splitter = ProviderEventSplitter()
            shown.samples.clear()
            shown.events.clear()
            async for data in response.body:
                self._take(shown, splitter.push(data))
                on_news()

    def _ask(self, path: str) -> AbstractAsyncContextManager[HttpResponse]:
        return self._client.exchange(
            "GET", path, self._headers, connect_s=_CONNECT_S, read_s=_READ_S
        )

    def _take(self, shown: TopData, events: bytes) -> None:
        for block in events.split(b"\n\n"):
            head, _, text = block.partition(b"\n")
            try:
                shown.take(head.removeprefix(b"event: ").decode(), text.removeprefix(b"data: "))
            except FAULTS as error:
                raise self._foreign(error) from error

    def _check(self, response: HttpResponse, body: bytes) -> None:
        if response.status in _REFUSED:
            raise ConfigError(
                f"the gateway at {self.url} shows this to admins only; name the environment "
                "variable that holds an admin's API key with --key-env"
            )
        if response.status != 200:
            said = " ".join(body[:_MAX_QUOTED].decode(errors="replace").split())
            raise HermaError(
                f"{self.url} answers {response.status}: {said}; is a Herma gateway there?"
            )

    def _foreign(self, error: Exception) -> HermaError:
        return HermaError(f"{self.url} is no gateway of this version of Herma: {error}")
