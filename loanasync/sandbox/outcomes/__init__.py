"""What a call is answered with, in words: one grammar for tags, rules and the command line."""

from loanasync.sandbox.outcomes.outcome import PLAIN, Answer, Outcome
from loanasync.sandbox.outcomes.rules import OPERATIONS, Operation, Rule, Rules, fault_texts
from loanasync.sandbox.outcomes.tags import (
    FAULTS,
    KNOWN,
    UnknownTagError,
    read_email,
    read_words,
    words_of,
)

__all__ = [
    "FAULTS",
    "KNOWN",
    "OPERATIONS",
    "PLAIN",
    "Answer",
    "Operation",
    "Outcome",
    "Rule",
    "Rules",
    "UnknownTagError",
]
__all__ += ["fault_texts", "read_email", "read_words", "words_of"]
