"""SQLite: the only package that imports sqlite3. The ledger of usage and cost, and what is stored
of the Responses API: responses, the events of their streams, conversations.
"""

from gateway.store.ledger import (
    DayTotal,
    Entry,
    LedgerError,
    LedgerStore,
    Settlement,
    Usages,
    add_to,
)
from gateway.store.ledger_report import Column, Report, Row, read_report, spent_beside
from gateway.store.response_store import (
    AddEvents,
    AddItems,
    Bounds,
    Change,
    Insert,
    Remove,
    ResponseStore,
    ResponseStoreError,
    SetObject,
    StoredResponse,
)

__all__ = [
    "AddEvents",
    "AddItems",
    "Bounds",
    "Change",
    "Column",
    "DayTotal",
    "Entry",
    "Insert",
    "LedgerError",
    "LedgerStore",
    "Remove",
    "Report",
    "ResponseStore",
    "ResponseStoreError",
    "Row",
    "SetObject",
    "Settlement",
    "StoredResponse",
    "Usages",
    "add_to",
    "read_report",
    "spent_beside",
]
