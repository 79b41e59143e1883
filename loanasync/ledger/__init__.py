"""An idempotency store for decisions: no crash, redelivery or race repeats a request or loses a decision."""

from loanasync._models.classes import name_by_package
from loanasync.ledger.address import open_ledger
from loanasync.ledger.administration import create_ledger, sweep
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.memory import MemoryLedger
from loanasync.ledger.model import Change, Entry, Settlement, State, Subject
from loanasync.ledger.orphans import import_orphans
from loanasync.ledger.policy import Cipher, LedgerPolicy
from loanasync.ledger.postgres import PostgresLedger
from loanasync.ledger.redis import RedisLedger
from loanasync.ledger.resolution import resolve
from loanasync.ledger.sqlite import SqliteLedger

__all__ = [
    "Change",
    "Cipher",
    "Entry",
    "Ledger",
    "LedgerPolicy",
    "MemoryLedger",
    "PostgresLedger",
    "RedisLedger",
    "Settlement",
    "SqliteLedger",
    "State",
    "Subject",
    "create_ledger",
    "import_orphans",
    "open_ledger",
    "resolve",
    "sweep",
]

name_by_package(globals())
