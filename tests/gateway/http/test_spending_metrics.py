"""What `/metrics` says of money."""

from prometheus_client import CollectorRegistry, generate_latest

from gateway.http.metrics import _Spending
from gateway.spending.limits import Account, LimitWindow, SpendingFigures

CLOUD = Account("provider", "cloud")


def test_amounts_are_in_units_and_labels_are_names() -> None:
    """A graph needs no division; spent and reserved both count against a limit."""
    figures = SpendingFigures(
        currency="EUR",
        spent={"cloud": 1_500_000},
        reserved={"cloud": 250_000},
        refusals={(CLOUD, "daily"): 3},
        windows=(LimitWindow(CLOUD, "daily", limit=5_000_000, spent=1_500_000, reserved=250_000),),
    )
    registry = CollectorRegistry()
    registry.register(_Spending(lambda: figures))
    lines = generate_latest(registry).decode().splitlines()
    where = 'name="cloud",period="daily",scope="provider"'
    assert {line for line in lines if line[0] != "#"} == {
        'herma_spend_total{currency="EUR",provider="cloud"} 1.5',
        'herma_spend_reserved{currency="EUR",provider="cloud"} 0.25',
        f"herma_spend_refusals_total{{{where}}} 3.0",
        f"herma_spend_limit{{{where}}} 5.0",
        f"herma_spend_in_window{{{where}}} 1.75",
    }
