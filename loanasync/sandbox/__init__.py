"""A local HTTP service that implements the specification, for tests and development.

It shares no code with the SDK, so that a mistake in one is not hidden by the same mistake in the other.
"""

from loanasync.sandbox.customers import StateFileError
from loanasync.sandbox.journal import Journal, JournalEntry
from loanasync.sandbox.linter import Finding
from loanasync.sandbox.server import Sandbox

__all__ = [
    "Finding",
    "Journal",
    "JournalEntry",
    "Sandbox",
    "StateFileError",
]

for _name in __all__:  # show the public module in repr and documentation
    globals()[_name].__module__ = __name__
