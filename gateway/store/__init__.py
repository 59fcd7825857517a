"""SQLite: the only package that imports sqlite3. Today the ledger of usage and cost."""

from gateway.store.ledger import DayTotal, Entry, LedgerError, LedgerStore, Settlement
from gateway.store.ledger_report import Column, Report, Row, read_report, spent_beside

__all__ = [
    "Column",
    "DayTotal",
    "Entry",
    "LedgerError",
    "LedgerStore",
    "Report",
    "Row",
    "Settlement",
    "read_report",
    "spent_beside",
]
