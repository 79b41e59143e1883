"""All public names of the package. `loanasync` loads this module when one of them is used first."""

from loanasync import __version__, errors
from loanasync._client import LoanClient
from loanasync._models.classes import name_by_package
from loanasync._models.decisions import (
    Approved,
    Decision,
    Known,
    Meta,
    Problem,
    Problems,
    RawResponse,
    Refused,
)
from loanasync._models.enumerations import (
    Citizenship,
    DocumentType,
    EducationalQualification,
    Residence,
    SalaryType,
)
from loanasync._models.masking import JSON
from loanasync._models.requests import AdditionalData, ApprovalRequest, UserData
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._protocol.schema import RequestRules, schema
from loanasync._settings import CircuitBreaker, Dialect, Limits, RetryPolicy, Telemetry, Timeout
from loanasync._transport.base import Transport
from loanasync.errors import *  # noqa: F403  (its `__all__` has the errors only)

__all__ = [
    "JSON",
    "AdditionalData",
    "ApprovalRequest",
    "Approved",
    "CircuitBreaker",
    "Citizenship",
    "Decision",
    "Dialect",
    "DocumentType",
    "EducationalQualification",
    "Known",
    "Limits",
    "LoanClient",
    "Meta",
    "NoResponse",
    "Problem",
    "Problems",
    "RawResponse",
    "Refused",
    "Request",
    "RequestRules",
    "Residence",
    "Response",
    "RetryPolicy",
    "SalaryType",
    "Telemetry",
    "Timeout",
    "Transport",
    "UserData",
    "__version__",
    "schema",
]
__all__ += errors.__all__

name_by_package(globals(), "loanasync")
