"""Tokens by client program."""

from prometheus_client import CollectorRegistry, generate_latest

from gateway.api import Usage
from gateway.http.auth import client_of, client_of_headers
from gateway.http.client_metrics import MAX_CLIENTS, ClientTokens


def shown(metrics: ClientTokens) -> list[str]:
    registry = CollectorRegistry()
    registry.register(metrics)
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if line.startswith("herma_client_tokens_total")]


def test_a_client_s_share_of_cached_tokens_is_seen() -> None:
    """The share is counted by the program's name, for all its versions; clients without a name
    count together.
    """
    metrics = ClientTokens(lambda: 1.5)
    for agent, cached in ((b"claude-cli/2.1 (external)", 0), (b"claude-cli/2.2", 30)):
        client = client_of_headers({b"host": b"x", b"user-agent": agent})
        metrics.count(client, Usage(40, cached, 5))
    metrics.count(client_of_headers({}), Usage(7, 0, 1))
    assert shown(metrics) == [
        'herma_client_tokens_total{client="claude-cli",kind="prompt"} 80.0',
        'herma_client_tokens_total{client="claude-cli",kind="cached"} 30.0',
        'herma_client_tokens_total{client="other",kind="prompt"} 7.0',
        'herma_client_tokens_total{client="other",kind="cached"} 0.0',
    ]


def test_names_are_words_and_bounded() -> None:
    """Clients choose them."""
    assert client_of(b"OpenAI/Python 3.52.0") == "openai"
    assert client_of(b'"\n{evil}') == "other"
    assert len(client_of(b"a" * 500)) == 32
    metrics = ClientTokens(lambda: 1.5)
    for number in range(100):
        metrics.count(client_of(b"c%d/1" % number), Usage(1, 0, 0))
    names = {line.partition('"')[2].partition('"')[0] for line in shown(metrics)}
    assert len(names) == MAX_CLIENTS
    assert "other" in names
