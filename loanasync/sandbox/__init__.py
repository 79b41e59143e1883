"""A local service that responds as the specification says, without credentials and network.

It shares only the HTTP format with the SDK, and no code, so that an error in one does not hide in the other.
"""

from loanasync.sandbox.customers import Snapshot
from loanasync.sandbox.journal import Journal, JournalEntry
from loanasync.sandbox.linter import Finding
from loanasync.sandbox.process import SandboxProcess
from loanasync.sandbox.readings import Readings
from loanasync.sandbox.rules import Rule
from loanasync.sandbox.server import Sandbox, serve
from loanasync.sandbox.sqlite import StateFileError

__all__ = [
    "Finding",
    "Journal",
    "JournalEntry",
    "Readings",
    "Rule",
    "Sandbox",
    "SandboxProcess",
    "Snapshot",
    "StateFileError",
    "serve",
]

for _name in __all__:  # by the place where users find it
    globals()[_name].__module__ = __name__
