"""Everything that can go wrong, as one tree of exceptions that say what to do next.

::

    LoanError
    ├── InvalidRequestError          found before anything was sent
    ├── ConfigurationError           the client itself is set up wrongly
    ├── ClientClosedError            the client was closed before
    ├── ServiceError                 the service answered, and it was neither a decision nor a success
    │   ├── RejectedError                400, a formally wrong parameter
    │   │   └── DomainError                  400 under `domain`
    │   │       ├── UserNotFoundError
    │   │       ├── AlreadyEvaluatedError
    │   │       ├── ShopNotAllowedError
    │   │       └── InvalidFiscalCodeError
    │   ├── AccessDeniedError            403
    │   ├── CannotCompleteError          409
    │   ├── SystemFaultError             500, and the attempts are used up
    │   └── UnexpectedStatusError        a status that the specification does not name for this call
    ├── UnexpectedReplyError         an answer came, and its content is outside the specification
    ├── TransportError               no answer came
    │   ├── ConnectError                 no connection
    │   ├── PoolTimeoutError             no free place among the concurrent calls in time
    │   ├── ReadTimeoutError             connected, and no answer within the time of one attempt
    │   ├── ConnectionLostError          connected, and the connection broke, or no HTTP came
    │   └── DeadlineExceededError        the total time of the call ran out
    └── LedgerError                  the ledger keeps the call from being made, or could not be written
        ├── LedgerUnavailableError       it could not be asked; nothing was sent
        ├── InFlightError                another worker asks for this approval
        ├── OutcomeUnknownError          asked before, and what was decided is not known here
        ├── PayloadMismatchError         asked before, with other data
        └── DecisionNotRecordedError     decided, and not written down: the error has the decision

A refusal is not in the tree: `Refused` is an answer. No error holds a token, a fiscal code or any other
personal value, but for the decision of a `DecisionNotRecordedError`, which is the only copy; none shows one.
Each survives pickling with all that it says.
"""

from loanasync.errors._failure import (
    ClientClosedError,
    ConfigurationError,
    InvalidRequestError,
    LoanError,
)
from loanasync.errors._ledger import (
    DecisionNotRecordedError,
    InFlightError,
    LedgerError,
    LedgerUnavailableError,
    OutcomeUnknownError,
    PayloadMismatchError,
)
from loanasync.errors._service import (
    AccessDeniedError,
    AlreadyEvaluatedError,
    CannotCompleteError,
    DomainError,
    InvalidFiscalCodeError,
    RejectedError,
    ServiceError,
    ShopNotAllowedError,
    SystemFaultError,
    UnexpectedReplyError,
    UnexpectedStatusError,
    UserNotFoundError,
)
from loanasync.errors._transport import (
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    PoolTimeoutError,
    ReadTimeoutError,
    TransportError,
)

__all__ = [
    "AccessDeniedError",
    "AlreadyEvaluatedError",
    "CannotCompleteError",
    "ClientClosedError",
    "ConfigurationError",
    "ConnectError",
    "ConnectionLostError",
    "DeadlineExceededError",
    "DecisionNotRecordedError",
    "DomainError",
    "InFlightError",
    "InvalidFiscalCodeError",
    "InvalidRequestError",
    "LedgerError",
    "LedgerUnavailableError",
    "LoanError",
    "OutcomeUnknownError",
    "PayloadMismatchError",
    "PoolTimeoutError",
    "ReadTimeoutError",
    "RejectedError",
    "ServiceError",
    "ShopNotAllowedError",
    "SystemFaultError",
    "TransportError",
    "UnexpectedReplyError",
    "UnexpectedStatusError",
    "UserNotFoundError",
]

# Tracebacks, pickles and the documentation name each by the place where users find it.
for _name in __all__:
    globals()[_name].__module__ = __name__
