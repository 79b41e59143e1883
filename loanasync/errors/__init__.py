"""All exceptions of this package, in one tree.

::

    LoanError
    ├── InvalidRequestError          the request breaks rules; it was not sent
    ├── ConfigurationError           a setting of the client cannot work
    ├── ClientClosedError            the client was closed before the call
    ├── ServiceError                 the service answered, with neither a decision nor a success
    │   ├── RejectedError                400 with messages for fields of the request
    │   ├── DomainError                  400 with a message under `domain`
    │   │   ├── UserNotFoundError
    │   │   ├── AlreadyEvaluatedError
    │   │   ├── ShopNotAllowedError
    │   │   └── InvalidFiscalCodeError
    │   ├── AccessDeniedError            403
    │   ├── CannotCompleteError          409
    │   ├── SystemFaultError             500 to the last attempt
    │   └── UnexpectedStatusError        a status that the specification does not name for this call
    ├── UnexpectedResponseError         the content of the response is outside the specification
    ├── TransportError               no response arrived
    │   ├── ConnectError                 no connection
    │   ├── PoolTimeoutError             no free slot among the concurrent calls in time
    │   ├── ReadTimeoutError             connected, and no response within the time of one attempt
    │   ├── ConnectionLostError          connected, and the connection broke, or the response was not HTTP
    │   └── DeadlineExceededError        the total time of the call ran out
    └── LedgerError                  the ledger or the client's memory prevents the call, or a write failed
        ├── LedgerUnavailableError       the ledger cannot be used; nothing was sent
        ├── InFlightError                another call or worker is waiting for this approval
        ├── OutcomeUnknownError          requested before, with an unknown outcome; nothing was sent
        ├── PayloadMismatchError         requested before, with other data; nothing was sent
        └── DecisionNotRecordedError     decided, and not written to the ledger; the error has the decision

Each error has `outcome`, `repeatable` and `entry`, which `LoanError` describes. A refusal is not in the tree:
`Refused` is a decision. No error shows a token, a fiscal code or another personal value. Two errors hold
personal data, because they may be the only copy: the `decision` of a `DecisionNotRecordedError`, and the
`response` of an `UnexpectedResponseError` or `UnexpectedStatusError`. Both are masked when printed. Errors
can be pickled.
"""

from loanasync._public import name_by_package
from loanasync.errors.ledger import (
    DecisionNotRecordedError,
    InFlightError,
    LedgerError,
    LedgerUnavailableError,
    OutcomeUnknownError,
    PayloadMismatchError,
)
from loanasync.errors.root import (
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
    "UnexpectedResponseError",
    "UnexpectedStatusError",
    "UserNotFoundError",
]

name_by_package(globals())
