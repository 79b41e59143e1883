"""A service to talk to without credentials and network: it answers as the specification says.

It shares no code with the SDK, only the wire, so that an error in one does not hide in the other.
"""

from loanasync.sandbox._command import serve
from loanasync.sandbox._customers import Snapshot, StateFileError
from loanasync.sandbox._journal import Entry, Journal
from loanasync.sandbox._linter import Finding
from loanasync.sandbox._outcomes import Rule
from loanasync.sandbox._process import SandboxProcess
from loanasync.sandbox._readings import Readings
from loanasync.sandbox._server import Sandbox

__all__ = [
    "Entry",
    "Finding",
    "Journal",
    "Readings",
    "Rule",
    "Sandbox",
    "SandboxProcess",
    "Snapshot",
    "StateFileError",
    "serve",
]
