"""SQLite: the only package that imports sqlite3. Today the ledger of usage and cost."""

from gateway.store.ledger import LedgerError, LedgerStore
from gateway.store.ledger_entries import DayTotal, Entry, LocalUse, Reservation, Settlement
from gateway.store.ledger_report import Column, Report, Row, read_report, spent_beside

__all__ = [
    "Column",
    "DayTotal",
    "Entry",
    "LedgerError",
    "LedgerStore",
    "LocalUse",
    "Report",
    "Reservation",
    "Row",
    "Settlement",
    "read_report",
    "spent_beside",
]
