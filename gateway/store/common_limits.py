"""Shared limits: spending limits that gateways on several hosts keep together, in a Redis server.

Owns the data on the server, which is a copy of each host's ledger windows, so that a lost server
loses nothing; and the one script that checks reservations against the sum over all hosts and makes
them. Calls block for `TIMEOUT_S` at most. Must not know SQLite.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from gateway.store.balances import Balance, BalanceKey, Balances, Cap, add_cost
from protocol.errors import ConfigError, HermaError

if TYPE_CHECKING:
    from redis import Redis, RedisError

TIMEOUT_S: Final = 1.0
REST_S: Final = 0.5
"""After a failure the server is not asked for this time, because requests wait for its answers."""

LOST_S: Final = 2.0
"""A server that has lost its data waits for this time, in which each host sends its copy again. A
host that does not is gone; its amounts count again when it comes back.
"""

KEEP_S: Final = 70 * 86_400
"""A month's copy is kept for longer than requests may still settle in it."""

_SCRIPT: Final = """
local prefix, call = KEYS[1], cjson.decode(ARGV[1])
local hosts_key = prefix .. ':hosts'
local function key_of(host, month) return prefix .. ':' .. month .. ':' .. host end
local function add(month, field, amount)
  local key = key_of(call.host, month)
  redis.call('HINCRBY', key, field, string.format('%.0f', amount))
  redis.call('EXPIRE', key, call.keep_s)
end
if call.is_whole then
  redis.call('SADD', hosts_key, call.host)
  for _, month in ipairs(call.months) do redis.call('DEL', key_of(call.host, month)) end
end
if redis.call('SISMEMBER', hosts_key, call.host) == 0 then
  return cjson.encode({is_missing = true, hosts = {}, refused = {}})
end
for _, row in ipairs(call.changes) do
  add(row[1], 's' .. row[2], row[3])
  add(row[1], 'r' .. row[2], row[4])
end
local hosts, refused, is_lost = redis.call('SMEMBERS', hosts_key), {}, false
for _, host in ipairs(call.hosts) do
  is_lost = is_lost or redis.call('SISMEMBER', hosts_key, host) == 0
end
for _, claim in ipairs(call.claims) do
  local fits = not (is_lost and call.waits) or #claim.caps == 0
  for _, cap in ipairs(claim.caps) do
    local total = 0
    for _, host in ipairs(hosts) do
      for _, held in ipairs(redis.call('HMGET', key_of(host, cap[1]), 's' .. cap[2], 'r' .. cap[2])) do
        total = total + (tonumber(held or 0) or 0)
      end
    end
    fits = fits and total + claim.cost <= cap[3]
  end
  if fits then
    for _, place in ipairs(claim.places) do add(place[1], 'r' .. place[2], claim.cost) end
  else
    table.insert(refused, claim.number)
  end
end
return cjson.encode({is_missing = false, is_lost = is_lost, hosts = hosts, refused = refused})
"""  # noqa: E501

_encode: Final = msgspec.json.Encoder().encode


class StoreUnreachable(HermaError):
    """The server gave no answer, so nothing is known of what it did. `cause` says why without
    addresses or secrets.
    """

    def __init__(self, text: str, cause: str) -> None:
        super().__init__(text)
        self.cause = cause


class _Answer(msgspec.Struct):
    """The script's answer. Lua has one empty table for lists and objects, so either may come."""

    is_missing: bool
    hosts: list[str] | dict[str, str]
    refused: list[int] | dict[str, int]
    is_lost: bool = False


class Wish(msgspec.Struct, frozen=True):
    """A reservation to be made at `places`, unless it would exceed one of `caps`."""

    number: int
    cost: int
    places: tuple[BalanceKey, ...]
    caps: tuple[Cap, ...]


@final
class CommonLimits:
    """The limits at `url` (redis://HOST:PORT/DATABASE, rediss:// for TLS), as `host` keeps them:
    the name of its ledger. `others`: the hosts that the server was last seen to know. Raises
    `ConfigError` if the client is not installed.
    """

    def __init__(
        self, url: str, password: str | None, currency: str, host: str, others: Iterable[str] = ()
    ) -> None:
        self._redis = _client(url, password)
        self._prefix = f"herma:{currency}"
        self._host = host
        self._is_synced = False
        self.others = set(others)
        self._lost_at: float | None = None
        self._rests_until = -math.inf
        self._last_trouble = ("", "")

    def exchange(
        self, windows: Callable[[], Balances], changes: Balances, wishes: list[Wish]
    ) -> frozenset[int]:
        """Send `changes` of this host's windows, and make reservations. Returns the numbers of
        those that would exceed a cap.

        Call it within the transaction that makes both durable here, and `committed` after that.
        Otherwise, as after a `StoreUnreachable`, the next call sends all of `windows` again.
        """
        is_synced, self._is_synced = self._is_synced, False
        answer = self._call(windows, changes, wishes, is_whole=not is_synced)
        if answer.is_missing:
            answer = self._call(windows, changes, wishes, is_whole=True)
        if not answer.is_lost or self._has_waited():
            self._lost_at = None
            self.others = {*answer.hosts} - {self._host}
        elif self._lost_at is None:
            self._lost_at = time.monotonic()
        return frozenset(map(int, answer.refused))

    def committed(self) -> None:
        """The changes that the last `exchange` sent are durable here too."""
        self._is_synced = True

    def forget(self) -> None:
        """The windows have changed without an exchange: send all of them next time."""
        self._is_synced = False

    def is_known(self) -> bool:
        """Whether the server has what this host sent. Raises `StoreUnreachable`."""
        (found,) = self._ask([("SMEMBERS", f"{self._prefix}:hosts")])
        hosts = {one.decode() for one in found}
        self.others |= hosts - {self._host}
        return self._is_synced and self._host in hosts

    def elsewhere(self, places: Iterable[BalanceKey]) -> dict[BalanceKey, Balance]:
        """The amounts that the other hosts have spent and reserved. Raises `StoreUnreachable`."""
        wanted = [(place, host) for place in places for host in self.others]
        asks = []
        for place, host in wanted:
            month, field = _field(place)
            asks.append(("HMGET", f"{self._prefix}:{month}:{host}", f"s{field}", f"r{field}"))
        found: dict[BalanceKey, Balance] = {}
        for (place, _), (spent, reserved) in zip(wanted, self._ask(asks), strict=True):
            add_cost(found, (place,), Balance(int(spent or 0), int(reserved or 0)))
        return found

    def close(self) -> None:
        """End the connection."""
        self._redis.close()

    def _call(
        self,
        windows: Callable[[], Balances],
        changes: Balances,
        wishes: list[Wish],
        *,
        is_whole: bool,
    ) -> _Answer:
        sent = windows() if is_whole else changes
        call = {
            "host": self._host,
            "hosts": sorted(self.others),
            "waits": not self._has_waited(),
            "keep_s": KEEP_S,
            "is_whole": is_whole,
            "months": sorted({_field(place)[0] for place in sent}),
            "changes": [(*_field(place), *change) for place, change in sent.items()],
            "claims": [_claim(wish) for wish in wishes],
        }
        (answer,) = self._ask([("EVAL", _SCRIPT, 1, self._prefix, _encode(call))])
        return msgspec.json.decode(answer, type=_Answer)

    def _has_waited(self) -> bool:
        return self._lost_at is not None and time.monotonic() - self._lost_at >= LOST_S

    def _ask(self, asks: Sequence[tuple[object, ...]]) -> list[Any]:
        """The server's answers, in one round trip."""
        from redis import RedisError  # noqa: PLC0415 (an extra)

        if not asks:
            return []
        if time.monotonic() < self._rests_until:
            raise StoreUnreachable(*self._last_trouble)
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                for words in asks:
                    pipeline.execute_command(*words)  # type: ignore[no-untyped-call]
                return list(pipeline.execute())
        except RedisError as error:
            self._rests_until = time.monotonic() + REST_S
            cause = _cause_of(error)
            text = f"the shared limits: {cause} ({type(error).__name__}: {error})"
            self._last_trouble = text, cause
            raise StoreUnreachable(text, cause) from error


def _cause_of(error: "RedisError") -> str:
    """What an operator has to look at. The classes are the client's, and some are only in its newer
    versions, so they are told by their names.
    """
    names = {one.__name__ for one in type(error).__mro__}
    text = str(error)
    if names & {"AuthenticationError", "AuthenticationWrongNumberOfArgsError"} or "NOAUTH" in text:
        return "the Redis server refuses the password"
    if "NoPermissionError" in names:
        return "the Redis server refuses this user's commands"
    if "OutOfMemoryError" in names or "OOM" in text:
        return "the Redis server is out of memory"
    if "BusyLoadingError" in names:
        return "the Redis server still loads its data"
    if "ReadOnlyError" in names:
        return "the Redis server is a read-only replica"
    if "TimeoutError" in names:
        return f"the Redis server did not answer in {TIMEOUT_S:g} s: it is stopped or busy"
    if "ConnectionError" in names:
        return "the Redis server cannot be reached"
    return "the Redis server answers with an error"


def _claim(wish: Wish) -> dict[str, object]:
    return {
        "number": wish.number,
        "cost": wish.cost,
        "places": [_field(place) for place in wish.places],
        "caps": [(*_field(place), limit) for place, limit in wish.caps],
    }


def _field(place: BalanceKey) -> tuple[str, str]:
    """The month whose key on the server holds the window, and the window's name under that key."""
    return place.window[:7], f"{place.kind}:{place.window}:{place.name}"


def _client(url: str, password: str | None) -> "Redis":
    try:
        from redis import Redis  # noqa: PLC0415 (an extra)
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "[ledger] shared needs the client of Redis: pip install 'herma[redis]'"
        ) from error
    # A command that is sent again might count twice.
    once = Retry(NoBackoff(), 0)
    times = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
    return Redis.from_url(url, password=password, retry=once, **times)
