"""SQLite: the only package that imports sqlite3. The ledger of usage and cost, and what is stored
of the Responses API: responses, the events of their streams, conversations.
"""

from gateway.store.balances import NOTHING, Balance, Balances, Cap, Place, add_cost, places_of
from gateway.store.common_limits import CommonLimits, StoreUnreachable
from gateway.store.conversation_sums import ConversationUse, Hold, HoldEnd, Most, Reached
from gateway.store.ledger import (
    Claim,
    DayTotal,
    Entry,
    LedgerError,
    LedgerStore,
    OfConversations,
    Settlement,
    Usages,
    add_to,
    check_ledger,
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
    check_responses,
)

__all__ = [
    "NOTHING",
    "AddEvents",
    "AddItems",
    "Balance",
    "Balances",
    "Bounds",
    "Cap",
    "Change",
    "Claim",
    "Column",
    "CommonLimits",
    "ConversationUse",
    "DayTotal",
    "Entry",
    "Hold",
    "HoldEnd",
    "Insert",
    "LedgerError",
    "LedgerStore",
    "Most",
    "OfConversations",
    "Place",
    "Reached",
    "Remove",
    "Report",
    "ResponseStore",
    "ResponseStoreError",
    "Row",
    "SetObject",
    "Settlement",
    "StoreUnreachable",
    "StoredResponse",
    "Usages",
    "add_cost",
    "add_to",
    "check_ledger",
    "check_responses",
    "places_of",
    "read_report",
    "spent_beside",
]
