"""SQLite: the only package that imports sqlite3. The ledger of usage and cost, and what is stored
of the Responses API: responses, the events of their streams, conversations.
"""

from gateway.store.balances import NOTHING, Balance, BalanceKey, Balances, Cap, add_cost, places_of
from gateway.store.common_limits import CommonLimits, StoreUnreachable
from gateway.store.conversation_sums import (
    ConversationLimits,
    HoldEnd,
    SumHold,
    SumReached,
    UseName,
    UseSums,
)
from gateway.store.late_ledger import LateLedger
from gateway.store.ledger import (
    LedgerEntry,
    LedgerError,
    LedgerStore,
    OfConversations,
    ReservationClaim,
    Settlement,
    Usages,
    add_to,
    check_ledger,
)
from gateway.store.ledger_report import Column, LedgerReport, LedgerRow, read_report, spent_beside
from gateway.store.response_store import (
    AddEvents,
    AddItems,
    Change,
    Insert,
    Remove,
    ResponseStore,
    ResponseStoreError,
    SetObject,
    StoreBounds,
    StoredResponse,
    check_responses,
)
from gateway.store.sqlite_file import DiskFull
