"""The calls that came, for a test to ask about and for a person to read."""

from loanasync.sandbox._journal._entry import Entry
from loanasync.sandbox._journal._journal import Journal
from loanasync.sandbox._journal._masking import MASK, masked, masked_email, pseudonym

__all__ = ["MASK", "Entry", "Journal", "masked", "masked_email", "pseudonym"]
