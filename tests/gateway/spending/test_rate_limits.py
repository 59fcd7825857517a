"""Token buckets of keys and addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import GatewayConfig, KeyConfig, RateLimitConfig
from gateway.api import Usage
from gateway.spending.rate_limits import MAX_ADDRESSES, Charge, RateLimits, Refusals, network_of
from gateway.telemetry import RequestTrace

HASH = "sha256:" + "0" * 64


def _limits(
    requests: int | None = None,
    tokens: int | None = None,
    *,
    address: RateLimitConfig | None = None,
    keys: tuple[KeyConfig, ...] = (),
) -> RateLimits:
    limits = RateLimits()
    default = RateLimitConfig(requests_per_minute=requests, tokens_per_minute=tokens)
    limits.follow(GatewayConfig(rate_limit=default, address_rate_limit=address), keys)
    return limits


def _passes(
    limits: RateLimits, now: float, key: str = "", host: str = "::1", size: int = 0
) -> bool:
    return limits.charge(key, host, size, now)[1] is None


def _settle(charge: Charge, tokens: int | None, *, has_begun: bool = True) -> None:
    usage = None if tokens is None else Usage(tokens, 0, 0)
    charge.settle(RequestTrace(usage=usage, first_at=1.0 if has_begun else None))


def _left(limits: RateLimits, now: float, what: bytes) -> int:
    """What the headers say, without a charge that lasts."""
    charge, _ = limits.charge("", "::1", 0, now)
    return int(dict(charge.headers())[b"x-ratelimit-remaining-" + what])


def test_a_minute_holds_as_many_requests_as_it_may() -> None:
    """A minute's requests may come at once; then one passes whenever its part of a minute is
    over.
    """
    limits = _limits(requests=6)
    assert [_passes(limits, 100.0) for _ in range(8)] == [True] * 6 + [False] * 2
    assert not _passes(limits, 109.9)
    assert _passes(limits, 110.0)
    assert not _passes(limits, 110.0)
    assert limits.refusals == {Refusals("key", "", "requests"): 4}


def test_a_refusal_names_limit_setting_and_time() -> None:
    """A refusal names the limit, the setting and the time, so that the client knows when to come
    back and its operator what to change.
    """
    limits = _limits(requests=6)
    for _ in range(6):
        limits.charge("", "::1", 0, 0.0)
    _, error = limits.charge("", "::1", 0, 0.0)
    assert error is not None
    assert (error.status, error.code, error.retry_after_s) == (429, "rate_limit_exceeded", 10)
    assert error.message == (
        "6 requests per minute are what this client may use; the next request passes in 10 s. "
        "`requests_per_minute` of [gateway] rate_limit in the gateway's file raises it."
    )


def test_tokens_are_estimated_and_then_settled() -> None:
    """Requests under way hold their estimate; the end puts the true number in its place."""
    limits = _limits(tokens=1000)
    first, error = limits.charge("", "::1", 600, 0.0)
    assert error is None
    assert _passes(limits, 0.0, size=600)
    assert not _passes(limits, 0.0), "both estimates together are more than a minute's"
    _settle(first, 100)
    assert _left(limits, 0.0, b"tokens") == 300
    second, error = limits.charge("", "::1", 300, 0.0)
    assert error is None
    _settle(second, 5_300)
    assert not _passes(limits, 0.0)
    assert not _passes(limits, 299.0), "a debt of 5,000 tokens lasts five minutes"
    assert _passes(limits, 301.0)


@pytest.mark.parametrize(("has_begun", "left"), [(True, 400), (False, 1000)])
def test_unknown_usage_is_the_estimate_if_an_answer_has_begun(has_begun: bool, left: int) -> None:
    """A client that leaves just before the usage does not read for free; a failed request is."""
    limits = _limits(tokens=1000)
    charge, _ = limits.charge("", "::1", 600, 0.0)
    _settle(charge, None, has_begun=has_begun)
    assert _left(limits, 0.0, b"tokens") == left


def test_a_key_may_have_its_own_limits_or_none() -> None:
    """A key's own table of limits replaces the default as a whole."""
    keys = (
        KeyConfig(name="batch", hash=HASH, rate_limit=RateLimitConfig(requests_per_minute=1)),
        KeyConfig(name="free", hash=HASH, rate_limit=RateLimitConfig()),
    )
    limits = _limits(requests=2, keys=keys)
    passed = {
        key: sum(_passes(limits, 0.0, key) for _ in range(9)) for key in ("batch", "free", "x")
    }
    assert passed == {"batch": 1, "free": 9, "x": 2}
    _, error = limits.charge("batch", "::1", 0, 0.0)
    assert error is not None
    assert "the API key `batch`" in error.message
    assert "[[keys]] rate_limit" in error.message


def test_an_address_is_limited_over_all_keys() -> None:
    """IPv6 subscribers have a /64 each; an IPv4 address is itself, mapped or not."""
    limits = _limits(address=RateLimitConfig(requests_per_minute=1))
    assert _passes(limits, 0.0, "a", "2001:db8::1")
    assert not _passes(limits, 0.0, "b", "2001:db8::2:1")
    assert _passes(limits, 0.0, "a", "2001:db8:0:1::1")
    assert _passes(limits, 0.0, "a", "192.0.2.1")
    assert not _passes(limits, 0.0, "a", "::ffff:192.0.2.1")
    _, error = limits.charge("b", "2001:db8::3", 0, 0.0)
    assert error is not None
    assert "[gateway] address_rate_limit" in error.message
    assert network_of("fe80::1%eth0") == "fe80::/64"


def test_addresses_are_bounded_and_keys_are_not_pushed_out() -> None:
    """A flood of addresses must not free a key, nor fill the memory."""
    limits = _limits(requests=1, address=RateLimitConfig(requests_per_minute=5))
    assert _passes(limits, 0.0, "a", "10.9.9.9")
    for number in range(MAX_ADDRESSES + 5):
        limits.charge(f"k{number % 3}", f"host{number}", 0, 0.0)
    assert len(limits._addresses) == MAX_ADDRESSES
    assert not _passes(limits, 0.0, "a", "10.9.9.9")


def test_a_reload_keeps_what_was_used() -> None:
    """A raised limit gives the difference at once; a gone one refuses nothing."""
    limits = _limits(requests=2)
    assert [_passes(limits, 0.0) for _ in range(3)] == [True, True, False]
    limits.follow(GatewayConfig(rate_limit=RateLimitConfig(requests_per_minute=5)), ())
    assert [_passes(limits, 0.0) for _ in range(4)] == [True, True, True, False]
    limits.follow(GatewayConfig(), ())
    assert not limits.is_any
    assert _passes(limits, 0.0)


def test_headers_are_those_of_the_tighter_limit() -> None:
    """Headers are those of the tighter limit, in OpenAI's spelling, durations as Go writes them."""
    limits = _limits(requests=100, tokens=600, address=RateLimitConfig(requests_per_minute=3))
    charge, _ = limits.charge("a", "192.0.2.1", 60, 0.0)
    assert dict(charge.headers()) == {
        b"x-ratelimit-limit-requests": b"3",
        b"x-ratelimit-remaining-requests": b"2",
        b"x-ratelimit-reset-requests": b"20s",
        b"x-ratelimit-limit-tokens": b"600",
        b"x-ratelimit-remaining-tokens": b"540",
        b"x-ratelimit-reset-tokens": b"6s",
    }
    for _ in range(2):
        charge, _ = limits.charge("a", "192.0.2.1", 600, 0.0)
    assert dict(charge.headers())[b"x-ratelimit-reset-tokens"] == b"1m6s"
    assert dict(charge.headers())[b"x-ratelimit-remaining-tokens"] == b"0"


def test_processes_share_a_limit() -> None:
    """Each has its part, at least one."""
    whole = RateLimitConfig(requests_per_minute=10, tokens_per_minute=3)
    assert whole.share(4) == RateLimitConfig(requests_per_minute=2, tokens_per_minute=1)
    assert RateLimitConfig().share(4) == RateLimitConfig()


@given(
    per_minute=st.integers(1, 600),
    steps=st.lists(st.tuples(st.floats(0, 30), st.integers(0, 500), st.integers(0, 2_000))),
)
def test_no_order_of_requests_exceeds_a_limit_in_the_long_run(
    per_minute: int, steps: list[tuple[float, int, int]]
) -> None:
    """What is used until any request is let in is under the minute's burst and what the time gave,
    whatever the estimates.
    """
    limits = _limits(tokens=per_minute)
    now, used = 0.0, 0
    for pause_s, estimate, tokens in steps:
        now += pause_s
        charge, error = limits.charge("", "::1", estimate, now)
        if error is None:
            assert used <= per_minute * (1 + now / 60) + 1e-6
            _settle(charge, tokens)
            used += tokens
        else:
            assert error.retry_after_s is not None
            assert not _passes(limits, now)
            now += error.retry_after_s
            assert _passes(limits, now), "the time that the error names is enough"
