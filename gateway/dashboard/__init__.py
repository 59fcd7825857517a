"""The dashboard: an overview of the fleet, the history of an hour, and requests explained.

Owns the rows, how they follow from the gateway's data, and the page. Must not know HTTP or
terminals.
"""

from gateway.dashboard.dashboard import Clients, Dashboard
from gateway.dashboard.explanation import AttemptRow, Explanation, Span, explain
from gateway.dashboard.overview import Source, condition_of, event_row, overview_of
from gateway.dashboard.page_file import page
from gateway.dashboard.rows import (
    ClientRow,
    EventRow,
    LimitRow,
    Log,
    ModelRow,
    Overview,
    ProviderRow,
    RequestRow,
    State,
    Totals,
    WorkerRow,
)
from gateway.dashboard.siblings import Siblings, merged

__all__ = [
    "AttemptRow",
    "ClientRow",
    "Clients",
    "Dashboard",
    "EventRow",
    "Explanation",
    "LimitRow",
    "Log",
    "ModelRow",
    "Overview",
    "ProviderRow",
    "RequestRow",
    "Siblings",
    "Source",
    "Span",
    "State",
    "Totals",
    "WorkerRow",
    "condition_of",
    "event_row",
    "explain",
    "merged",
    "overview_of",
    "page",
]
