"""Usage and cost on disk; the only importer of sqlite3."""

from gateway.ledger.report import Column, Report, Row, read_report, spent_beside
from gateway.ledger.store import LedgerError, LedgerStore

__all__ = [
    "Column",
    "LedgerError",
    "LedgerStore",
    "Report",
    "Row",
    "read_report",
    "spent_beside",
]
