"""Async Python SDK for a loan request approval service."""

from loanasync._client import LoanClient
from loanasync._display.masking import JSON
from loanasync._enums import Citizenship, DocumentType, EducationalQualification, Residence, SalaryType
from loanasync._models.dialect import Dialect
from loanasync._models.requests import AdditionalData, ApprovalRequest, UserData
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._public import name_by_package
from loanasync._results import Approved, Decision, Meta, Problem, RawResponse, Refused
from loanasync._schema.json_schema import schema
from loanasync._schema.pydantic import RequestRules
from loanasync._settings import CircuitBreaker, Limits, RetryPolicy, Timeout
from loanasync._transport.base import Transport
from loanasync._version import __version__
from loanasync.errors import (
    AccessDeniedError,
    AlreadyEvaluatedError,
    CannotCompleteError,
    CircuitOpenError,
    ClientClosedError,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    DecisionForgottenError,
    DecisionNotRecordedError,
    DomainError,
    InFlightError,
    InvalidFiscalCodeError,
    InvalidRequestError,
    LedgerError,
    LedgerMismatchError,
    LedgerUnavailableError,
    LoanError,
    NotResolvedError,
    OutcomeUnknownError,
    PayloadMismatchError,
    PoolTimeoutError,
    ReadTimeoutError,
    RejectedError,
    ServiceError,
    ShopNotAllowedError,
    SystemFaultError,
    TransportError,
    UnexpectedResponseError,
    UnexpectedStatusError,
    UserNotFoundError,
)

__all__ = [
    "JSON",
    "AccessDeniedError",
    "AdditionalData",
    "AlreadyEvaluatedError",
    "ApprovalRequest",
    "Approved",
    "CannotCompleteError",
    "CircuitBreaker",
    "CircuitOpenError",
    "Citizenship",
    "ClientClosedError",
    "ConfigurationError",
    "ConnectError",
    "ConnectionLostError",
    "DeadlineExceededError",
    "Decision",
    "DecisionForgottenError",
    "DecisionNotRecordedError",
    "Dialect",
    "DocumentType",
    "DomainError",
    "EducationalQualification",
    "InFlightError",
    "InvalidFiscalCodeError",
    "InvalidRequestError",
    "LedgerError",
    "LedgerMismatchError",
    "LedgerUnavailableError",
    "Limits",
    "LoanClient",
    "LoanError",
    "Meta",
    "NoResponse",
    "NotResolvedError",
    "OutcomeUnknownError",
    "PayloadMismatchError",
    "PoolTimeoutError",
    "Problem",
    "RawResponse",
    "ReadTimeoutError",
    "Refused",
    "RejectedError",
    "Request",
    "RequestRules",
    "Residence",
    "Response",
    "RetryPolicy",
    "SalaryType",
    "ServiceError",
    "ShopNotAllowedError",
    "SystemFaultError",
    "Timeout",
    "Transport",
    "TransportError",
    "UnexpectedResponseError",
    "UnexpectedStatusError",
    "UserData",
    "UserNotFoundError",
    "__version__",
    "schema",
]

name_by_package(globals())
