"""Tools for the tests of a shop: valid requests, scripted responses, recorded requests and telemetry.

This package needs no extra, and importing `loanasync` does not load it. To test over HTTP against a complete
service, use `loanasync.sandbox`.
"""

from loanasync._models.classes import name_by_package
from loanasync._models.masking import JSON  # noqa: F401  (`typing.get_type_hints` looks for it here)
from loanasync._runtime.flights import MEMORIES
from loanasync.testing.builders import additional_data, approval_request, email, fiscal_code, user_data
from loanasync.testing.mocked_aiohttp import repaired_aioresponses
from loanasync.testing.responses import (
    ScriptedResponse,
    approved,
    computed,
    conflict,
    connection_lost,
    denied,
    domain_error,
    not_connected,
    refused,
    rejected,
    response,
    system_error,
    timed_out,
)
from loanasync.testing.sent import SentRequest
from loanasync.testing.telemetry import Metric, TelemetryRecorder
from loanasync.testing.transport import Clock, ScriptedTransport, scripted_client

__all__ = [
    "Clock",
    "Metric",
    "ScriptedResponse",
    "ScriptedTransport",
    "SentRequest",
    "TelemetryRecorder",
    "additional_data",
    "approval_request",
    "approved",
    "computed",
    "conflict",
    "connection_lost",
    "denied",
    "domain_error",
    "email",
    "fiscal_code",
    "forget_approvals",
    "not_connected",
    "refused",
    "rejected",
    "repaired_aioresponses",
    "response",
    "scripted_client",
    "system_error",
    "timed_out",
    "user_data",
]


def forget_approvals() -> None:
    """Forget all approvals that this process remembers without a ledger, as a restart does.

    Call it between tests whose clients request approvals of the same customers. The pytest plugin of this
    package calls it before each test. A client with `transport=`, or of `Sandbox.client`, keeps its own
    memory. Entries in ledgers stay.

    Example:
        >>> from loanasync.testing import forget_approvals
        >>> shop = LoanClient(sandbox.base_url, shop_id=sandbox.shop_id, auth_token=sandbox.auth_token)
        >>> run(shop.approve(fiscal_code, request)).approved
        True
        >>> run(shop.aclose())
        >>> forget_approvals()
        >>> shop = LoanClient(sandbox.base_url, shop_id=sandbox.shop_id, auth_token=sandbox.auth_token)
        >>> run(shop.known(fiscal_code)).state
        'none'
        >>> run(shop.aclose())
    """
    MEMORIES.forget()


name_by_package(globals())
