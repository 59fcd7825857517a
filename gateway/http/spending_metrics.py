"""What `/metrics` shows of money.

Owns the names and labels of the spending figures, in units of the ledger's currency: they are for
graphs and alarms, the exact sums are the ledger's. Must not know who keeps the books.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.spending import MICRO, SpendingFigures, Window


class SpendingCollector(Collector):
    """Reads the books at each scrape."""

    def __init__(self, figures: Callable[[], SpendingFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        now = self._figures()
        spend = CounterMetricFamily(
            "herma_spend",
            "Cost of cloud requests since the start; unsettled ones at their most.",
            labels=("provider", "currency"),
        )
        reserved = GaugeMetricFamily(
            "herma_spend_reserved",
            "What the cloud requests under way can cost at most.",
            labels=("provider", "currency"),
        )
        for provider, micro in now.spent.items():
            spend.add_metric((provider, now.currency), micro / MICRO)
        for provider, micro in now.reserved.items():
            reserved.add_metric((provider, now.currency), micro / MICRO)
        refusals = CounterMetricFamily(
            "herma_spend_refusals",
            "Times that a limit kept a request from a provider.",
            labels=("scope", "name", "period"),
        )
        for (account, period), count in now.refusals.items():
            refusals.add_metric((account.kind, account.name, period), count)
        yield from (spend, reserved, refusals, *_of_windows(now.windows))

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read the books."""
        return iter(())


def _of_windows(windows: tuple[Window, ...]) -> tuple[Metric, Metric]:
    labels = ("scope", "name", "period")
    limits = GaugeMetricFamily("herma_spend_limit", "The configured limits.", labels=labels)
    used = GaugeMetricFamily(
        "herma_spend_in_window",
        "What counts against a limit now: spent and reserved in its day or month.",
        labels=labels,
    )
    for window in windows:
        values = (window.account.kind, window.account.name, window.period)
        limits.add_metric(values, window.limit / MICRO)
        used.add_metric(values, (window.spent + window.reserved) / MICRO)
    return limits, used
