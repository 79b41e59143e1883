"""From what a caller hands over to a call that may be sent, or to everything that is wrong with it."""

from collections.abc import Iterator, Mapping

from loanasync._config import Options
from loanasync._display.masking import JSON
from loanasync._models.requests import ApprovalRequest, UserData
from loanasync._protocol import endpoints as calls
from loanasync._protocol.endpoints import Call
from loanasync._results import Problem
from loanasync._validation import rules
from loanasync.errors import InvalidRequestError

# Errors are handed back and not raised: the frames here hold personal values, and a traceback keeps frames.
Prepared = Call | InvalidRequestError


def check(
    options: Options, fiscal_code: str, request: ApprovalRequest | UserData, *, additional_data_needed: bool
) -> tuple[Problem, ...]:
    """Everything that is wrong with a request, whichever of the two calls it is for."""
    found = _check_code(options, fiscal_code)
    if isinstance(request, UserData):
        return (*found, *rules.check_user_data(request, options.limits))
    return (*found, *_check_approval(options, request, additional_data_needed=additional_data_needed))


def approve(
    options: Options,
    fiscal_code: str,
    request: ApprovalRequest,
    *,
    additional_data_needed: bool,
    scope: str = "",
) -> Prepared:
    """Spec §4.1."""
    problems = (
        *_check_code(options, fiscal_code),
        *_check_approval(options, request, additional_data_needed=additional_data_needed),
        *rules.check_scope(scope),
    )
    if problems:
        return InvalidRequestError(problems)
    code = rules.normalize_fiscal_code(fiscal_code)
    return calls.approve(options.shop, options.dialect, code, request)


def complete(options: Options, fiscal_code: str, data: UserData) -> Prepared:
    """Spec §4.2."""
    problems = (*_check_code(options, fiscal_code), *rules.check_user_data(data, options.limits))
    if problems:
        return InvalidRequestError(problems)
    return calls.complete(options.shop, options.dialect, rules.normalize_fiscal_code(fiscal_code), data)


def create_request(options: Options, payload: Mapping[str, JSON]) -> Prepared:
    """Spec §4.3."""
    problems = tuple(rules.check_payload(payload))
    if problems:
        return InvalidRequestError(problems)
    return calls.create_request(options.shop, payload)


def upload_documents(options: Options, fiscal_code: str, payload: Mapping[str, JSON]) -> Prepared:
    """Spec §4.3."""
    problems = (*_check_code(options, fiscal_code), *rules.check_payload(payload))
    if problems:
        return InvalidRequestError(problems)
    return calls.upload_documents(options.shop, rules.normalize_fiscal_code(fiscal_code), payload)


def _check_code(options: Options, fiscal_code: str) -> Iterator[Problem]:
    return rules.check_fiscal_code(fiscal_code, strict=options.strict)


def _check_approval(
    options: Options, request: ApprovalRequest, *, additional_data_needed: bool
) -> Iterator[Problem]:
    return rules.check_approval(
        request,
        additional_data_needed=additional_data_needed,
        dialect=options.dialect,
        limits=options.limits,
    )
