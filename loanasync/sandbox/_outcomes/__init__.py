"""What a call is answered with, in words: one grammar for tags, rules and the command line."""

from loanasync.sandbox._outcomes._outcome import PLAIN, Answer, Outcome
from loanasync.sandbox._outcomes._rules import OPERATIONS, Operation, Rule, Rules
from loanasync.sandbox._outcomes._tags import KNOWN, UnknownTagError, read_email, read_words, words_of

__all__ = [
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
__all__ += ["read_email", "read_words", "words_of"]
