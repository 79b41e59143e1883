"""A memory of decisions, so that no crash, redelivery or race asks twice or loses an answer."""

from loanasync.ledger._entries import Change, Entry, Settlement, State, Subject
from loanasync.ledger._memory import MemoryLedger
from loanasync.ledger._policy import Cipher, LedgerPolicy
from loanasync.ledger._postgres import PostgresLedger
from loanasync.ledger._protocol import DecisionLedger
from loanasync.ledger._redis import RedisLedger
from loanasync.ledger._resolving import resolve
from loanasync.ledger._spool import import_orphans
from loanasync.ledger._sqlite import SqliteLedger
from loanasync.ledger._sweeping import sweep

__all__ = [
    "Change",
    "Cipher",
    "DecisionLedger",
    "Entry",
    "LedgerPolicy",
    "MemoryLedger",
    "PostgresLedger",
    "RedisLedger",
    "Settlement",
    "SqliteLedger",
    "State",
    "Subject",
    "import_orphans",
    "resolve",
    "sweep",
]
