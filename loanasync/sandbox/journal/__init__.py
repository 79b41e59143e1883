"""The calls that came, for a test to ask about and for a person to read."""

from loanasync.sandbox.journal.entry import Entry
from loanasync.sandbox.journal.masking import MASK, masked, masked_email, pseudonym
from loanasync.sandbox.journal.store import Journal

__all__ = ["MASK", "Entry", "Journal", "masked", "masked_email", "pseudonym"]
