"""The dashboard: an overview of the fleet, the history of an hour, and requests explained.

Owns the rows, how they follow from the gateway's data, and the page. Must not know HTTP or
terminals.
"""

from gateway.dashboard.dashboard import Clients, Dashboard
from gateway.dashboard.explanation import AttemptRow, Explanation, StageSpan, explain
from gateway.dashboard.overview import OverviewSource, condition_of, event_row, overview_of
from gateway.dashboard.page_file import page
from gateway.dashboard.rows import (
    ClientRow,
    DashboardState,
    EventLog,
    EventRow,
    LimitRow,
    ModelRow,
    Overview,
    ProviderRow,
    RequestRow,
    Totals,
    WorkerRow,
)
from gateway.dashboard.siblings import Siblings, merged

__all__ = [
    "AttemptRow",
    "ClientRow",
    "Clients",
    "Dashboard",
    "DashboardState",
    "EventLog",
    "EventRow",
    "Explanation",
    "LimitRow",
    "ModelRow",
    "Overview",
    "OverviewSource",
    "ProviderRow",
    "RequestRow",
    "Siblings",
    "StageSpan",
    "Totals",
    "WorkerRow",
    "condition_of",
    "event_row",
    "explain",
    "merged",
    "overview_of",
    "page",
]
