"""Rate limits: requests and tokens per minute of an API key, and of a client's address.

Owns the token buckets, what a request is charged before and after its turn, and the texts and
headers that report it. Must not know HTTP servers or clocks; time is an argument, in seconds.

A bucket holds what a minute allows and refills evenly. The tokens of a request are known only at
its end. So a request passes while anything is left, is charged an estimate, and at its end pays
what it has used: a bucket may be in debt, which delays later requests until it is repaid.
"""

import functools
import ipaddress
import math
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, final

from config import GatewayConfig, KeyConfig, RateLimitConfig
from gateway.api import ApiError
from gateway.telemetry import RequestTrace

MAX_ADDRESSES: Final = 10_000
"""Addresses that are remembered; beyond this the one that was silent longest is forgotten."""

Scope = Literal["key", "address"]
Unit = Literal["requests", "tokens"]
Header = tuple[bytes, bytes]


class Refusals(NamedTuple):
    """The labels of a count of refused requests; `name` is that of a key, empty for addresses."""

    scope: Scope
    name: str
    unit: Unit


@final
class Bucket:
    """`level` of at most `per_minute`, as of `at` seconds; negative is a debt."""

    __slots__ = ("at", "level", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self.level = float(per_minute)
        self.at = now

    def refill(self, now: float) -> None:
        """Add the refill for the time since the last call."""
        gained = max(0.0, now - self.at) * self.per_minute / 60
        self.level = min(float(self.per_minute), self.level + gained)
        self.at = now

    def wait_s(self, level: float) -> float:
        """Seconds until the bucket holds that much."""
        return max(0.0, level - self.level) * 60 / self.per_minute


@final
class RateAccount:
    """The buckets of one key or address, one per limit that applies. `setting` names the table of
    the limits in the configuration.
    """

    __slots__ = ("buckets", "name", "scope", "setting")

    def __init__(self, scope: Scope, name: str) -> None:
        self.scope, self.name, self.setting = scope, name, ""
        self.buckets: dict[Unit, Bucket] = {}

    def follow(self, limits: RateLimitConfig, setting: str, now: float) -> None:
        """Apply `limits` from now on; what was used before counts against them."""
        self.setting = setting
        wanted: dict[Unit, int | None] = {
            "requests": limits.requests_per_minute,
            "tokens": limits.tokens_per_minute,
        }
        for unit, per_minute in wanted.items():
            if per_minute is None:
                self.buckets.pop(unit, None)
            elif (bucket := self.buckets.get(unit)) is None:
                self.buckets[unit] = Bucket(per_minute, now)
            else:
                bucket.refill(now)
                bucket.level += per_minute - bucket.per_minute
                bucket.per_minute = per_minute


@final
class Charge:
    """The accounts of one request, and what it was charged."""

    __slots__ = ("_accounts", "_tokens")

    def __init__(self, accounts: tuple[RateAccount, ...]) -> None:
        self._accounts = accounts
        self._tokens = 0

    def take(self, tokens: int) -> None:
        """Charge one request and an estimate of its tokens, at most a minute's."""
        limits = [bucket.per_minute for bucket in self._of("tokens")]
        self._tokens = min(tokens, *limits) if limits else 0
        for bucket in self._of("requests"):
            bucket.level -= 1
        for bucket in self._of("tokens"):
            bucket.level -= self._tokens

    def settle(self, trace: RequestTrace) -> None:
        """Replace the estimate by the actual use, at the end. If the use is unknown, the estimate
        counts, or 0 if no answer has begun.
        """
        used = 0 if trace.first_at is None else self._tokens
        if trace.usage is not None:
            used = trace.usage.prompt_tokens + trace.usage.completion_tokens
        for bucket in self._of("tokens"):
            bucket.level += self._tokens - used
        self._tokens = used

    def obstacle(self) -> tuple[RateAccount, Unit] | None:
        """The limit that is reached, the one that lasts longest."""
        reached = [
            (bucket.wait_s(1.0), account, unit)
            for account in self._accounts
            for unit, bucket in account.buckets.items()
            if bucket.level < 1.0
        ]
        if not reached:
            return None
        _, account, unit = max(reached, key=lambda one: one[0])
        return account, unit

    def headers(self) -> list[Header]:
        """The remainder of the limit that leaves least, as OpenAI's headers."""
        headers: list[Header] = []
        units: tuple[Unit, ...] = ("requests", "tokens")
        for unit in units:
            tightest = min(self._of(unit), key=lambda bucket: bucket.level, default=None)
            if tightest is not None:
                name = unit.encode()
                reset = _duration(tightest.wait_s(tightest.per_minute))
                left = max(0, math.floor(tightest.level))
                headers += [
                    (b"x-ratelimit-limit-" + name, b"%d" % tightest.per_minute),
                    (b"x-ratelimit-remaining-" + name, b"%d" % left),
                    (b"x-ratelimit-reset-" + name, reset.encode()),
                ]
        return headers

    def _of(self, unit: Unit) -> Iterable[Bucket]:
        return [one.buckets[unit] for one in self._accounts if unit in one.buckets]


@final
class RateLimits:
    """The accounts of all keys and of the addresses that were here last. `refusals` counts."""

    def __init__(self) -> None:
        self.refusals: Counter[Refusals] = Counter()
        self._default: RateLimitConfig | None = None
        self._of_keys: dict[str, RateLimitConfig] = {}
        self._of_addresses: RateLimitConfig | None = None
        self._keys: dict[str, RateAccount] = {}
        self._addresses: OrderedDict[str, RateAccount] = OrderedDict()

    @property
    def is_any(self) -> bool:
        """Whether a limit can refuse a request."""
        limits = (self._default, self._of_addresses, *self._of_keys.values())
        return any(one is not None and one.any for one in limits)

    def follow(self, gateway: GatewayConfig, keys: Iterable[KeyConfig]) -> None:
        """Apply this configuration from now on."""
        self._default, self._of_addresses = gateway.rate_limit, gateway.address_rate_limit
        self._of_keys = {key.name: key.rate_limit for key in keys if key.rate_limit is not None}
        known = {"", *(key.name for key in keys)}
        self._keys = {name: one for name, one in self._keys.items() if name in known}

    def charge(
        self, key: str, host: str, tokens: int, now: float
    ) -> tuple[Charge, ApiError | None]:
        """Charge a request of `key` ("" without keys) from the address `host`; `tokens` is an
        estimate. With an error nothing is charged.
        """
        charge = Charge(tuple(self._accounts(key, host, now)))
        if (reached := charge.obstacle()) is not None:
            account, unit = reached
            self.refusals[Refusals(account.scope, account.name, unit)] += 1
            return charge, _refusal(account, unit)
        charge.take(tokens)
        return charge, None

    def _accounts(self, key: str, host: str, now: float) -> Iterable[RateAccount]:
        own = self._of_keys.get(key)
        limits = own or self._default
        if limits is not None:
            account = self._keys.setdefault(key, RateAccount("key", key))
            setting = "[gateway] rate_limit" if own is None else "[[keys]] rate_limit"
            yield _at(account, limits, setting, now)
        if self._of_addresses is not None:
            network = network_of(host)
            account = self._addresses.setdefault(network, RateAccount("address", ""))
            self._addresses.move_to_end(network)
            if len(self._addresses) > MAX_ADDRESSES:
                self._addresses.popitem(last=False)
            yield _at(account, self._of_addresses, "[gateway] address_rate_limit", now)


def _at(account: RateAccount, limits: RateLimitConfig, setting: str, now: float) -> RateAccount:
    account.follow(limits, setting, now)
    return account


def _refusal(account: RateAccount, unit: Unit) -> ApiError:
    bucket = account.buckets[unit]
    wait_s = max(1, math.ceil(bucket.wait_s(1.0)))
    whose = f"the API key `{account.name}`" if account.name else "this client"
    if account.scope == "address":
        whose = "this client's address"
    text = (
        f"{bucket.per_minute} {unit} per minute are what {whose} may use; the next request passes "
        f"in {wait_s} s. `{unit}_per_minute` of {account.setting} in the gateway's file raises it."
    )
    return ApiError(429, text, code="rate_limit_exceeded", retry_after_s=wait_s)


@functools.lru_cache(maxsize=1024)
def network_of(host: str) -> str:
    """The network that counts as one client: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def _duration(seconds: float) -> str:
    """A duration in Go's form, which OpenAI's headers have: 120ms, 8s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(1000 * seconds)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
