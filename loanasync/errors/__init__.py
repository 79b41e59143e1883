"""All exceptions of this package, in one tree.

::

    LoanError
    ├── InvalidRequestError          the request breaks rules; it was not sent
    ├── ConfigurationError           a setting of the client is invalid
    ├── ClientClosedError            the client was closed before the call
    ├── CircuitOpenError             the circuit breaker is open; no request was sent
    ├── ServiceError                 the response is neither a decision nor a success
    │   ├── RejectedError                400 with messages for fields of the request
    │   ├── DomainError                  400 with a message under `domain`
    │   │   ├── UserNotFoundError
    │   │   ├── AlreadyEvaluatedError
    │   │   ├── ShopNotAllowedError
    │   │   └── InvalidFiscalCodeError
    │   ├── AccessDeniedError            403
    │   ├── CannotCompleteError          409
    │   ├── SystemFaultError             500 on the last attempt
    │   └── UnexpectedStatusError        a status that the specification does not list for this call
    ├── UnexpectedResponseError      the content of the response does not follow the specification
    ├── TransportError               no response arrived
    │   ├── ConnectError                 no connection was established
    │   ├── PoolTimeoutError             no slot was free in time
    │   ├── ReadTimeoutError             no response within the time limit of one attempt
    │   ├── ConnectionLostError          the connection broke, or the response was not HTTP
    │   └── DeadlineExceededError        the total time limit of the call has passed
    └── LedgerError                  the ledger or the client's memory prevents the call, or a write failed
        ├── LedgerUnavailableError       the ledger is not available; no request was sent
        ├── LedgerMismatchError          the ledger does not fit this client; no request was sent
        ├── InFlightError                another call or worker has requested this approval
        ├── OutcomeUnknownError          requested before, with an unknown outcome; no request was sent
        ├── PayloadMismatchError         requested before, with other data; no request was sent
        ├── DecisionForgottenError       decided before, but the client keeps only its last decisions
        ├── NotResolvedError             the entry does not permit the outcome that `resolve` states
        └── DecisionNotRecordedError     decided, but not written to the ledger; the error has the decision

Each error has the attributes `outcome`, `repeatable` and `entry` of `LoanError`. A refusal is not an error:
`approve` returns `Refused`. `str()` and `repr()` never contain a token, a fiscal code or other personal
data. Three attributes may: `decision` of a `DecisionNotRecordedError`, `response` of an
`UnexpectedResponseError`, `UnexpectedStatusError` or `AlreadyEvaluatedError`, and `message` of the problems
that the service found.

Errors can be pickled.
"""

from loanasync._public import name_by_package
from loanasync.errors.ledger import (
    DecisionForgottenError,
    DecisionNotRecordedError,
    InFlightError,
    LedgerError,
    LedgerMismatchError,
    LedgerUnavailableError,
    NotResolvedError,
    OutcomeUnknownError,
    PayloadMismatchError,
)
from loanasync.errors.root import (
    CircuitOpenError,
    ClientClosedError,
    ConfigurationError,
    InvalidRequestError,
    LoanError,
)
from loanasync.errors.service import (
    AccessDeniedError,
    AlreadyEvaluatedError,
    CannotCompleteError,
    DomainError,
    InvalidFiscalCodeError,
    RejectedError,
    ServiceError,
    ShopNotAllowedError,
    SystemFaultError,
    UnexpectedResponseError,
    UnexpectedStatusError,
    UserNotFoundError,
)
from loanasync.errors.transport import (
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
    "CircuitOpenError",
    "ClientClosedError",
    "ConfigurationError",
    "ConnectError",
    "ConnectionLostError",
    "DeadlineExceededError",
    "DecisionForgottenError",
    "DecisionNotRecordedError",
    "DomainError",
    "InFlightError",
    "InvalidFiscalCodeError",
    "InvalidRequestError",
    "LedgerError",
    "LedgerMismatchError",
    "LedgerUnavailableError",
    "LoanError",
    "NotResolvedError",
    "OutcomeUnknownError",
    "PayloadMismatchError",
    "PoolTimeoutError",
    "ReadTimeoutError",
    "RejectedError",
    "ServiceError",
    "ShopNotAllowedError",
    "SystemFaultError",
    "TransportError",
    "UnexpectedResponseError",
    "UnexpectedStatusError",
    "UserNotFoundError",
]

name_by_package(globals(), "loanasync")
