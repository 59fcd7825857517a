"""The dashboard: an overview of the fleet, the history of an hour, and requests explained.

Owns the rows, how they follow from the gateway's data, and the page. Must not know HTTP or
terminals.
"""

from gateway.dashboard.dashboard import Dashboard
from gateway.dashboard.explanation import Explanation, explain
from gateway.dashboard.overview import OverviewSource, condition_of, event_row, overview_of
from gateway.dashboard.page_file import page
from gateway.dashboard.rows import (
    DashboardState,
    EventLog,
    EventRow,
    LimitRow,
    ModelRow,
    Overview,
    ProviderRow,
    RequestRow,
    WorkerRow,
)
from gateway.dashboard.siblings import Siblings, merged
