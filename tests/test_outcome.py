"""What an approval that ended without a decision may have left behind at the service."""

import asyncio

import pytest

from loanasync import (
    AccessDeniedError,
    AlreadyEvaluatedError,
    CannotCompleteError,
    ClientClosedError,
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    DecisionNotRecordedError,
    InvalidRequestError,
    OutcomeUnknownError,
    PoolTimeoutError,
    Problem,
    ReadTimeoutError,
    RejectedError,
    SystemFaultError,
    UnexpectedReplyError,
    UnexpectedStatusError,
)
from loanasync._meta import Meta
from loanasync._outcome import outcome_of

NO_PROBLEMS: tuple[Problem, ...] = ()


def answered(status: int, attempts: int = 1) -> Meta:
    return Meta(status, attempts, 0.1)


@pytest.mark.parametrize(
    ("error", "attempts", "outcome"),
    [
        # an answer of which only the half is there: its status may be enough
        (UnexpectedReplyError("approve", ("body: truncated",), "refused", answered(422)), 1, "refused"),
        (UnexpectedReplyError("approve", ("body: truncated",), "approved", answered(201)), 1, "approved"),
        (UnexpectedReplyError("approve", ("approved: missing",), "unknown", answered(201)), 1, "unknown"),
        # no answer
        (ConnectError("approve", "ClientConnectorError", "no", 1), 1, None),
        (ConnectError("approve", "ClientConnectorError", "maybe", 2), 2, "unknown"),
        (PoolTimeoutError("approve", "TimeoutError", "no", 0), 0, None),
        (ReadTimeoutError("approve", "TimeoutError", "maybe", 1), 1, "unknown"),
        (ConnectionLostError("approve", "ServerDisconnectedError", "maybe", 1), 1, "unknown"),
        (DeadlineExceededError("approve", "TimeoutError", "no", 1), 1, None),
        (DeadlineExceededError("approve", "TimeoutError", "maybe", 2), 2, "unknown"),
        # an answer that tells of no decision
        (SystemFaultError("approve", NO_PROBLEMS, answered(500, 3), "attempts"), 3, "unknown"),
        (UnexpectedStatusError("approve", NO_PROBLEMS, answered(504)), 1, "unknown"),
        (UnexpectedStatusError("approve", NO_PROBLEMS, answered(500)), 1, "unknown"),
        (UnexpectedStatusError("approve", NO_PROBLEMS, answered(499)), 1, None),
        (UnexpectedStatusError("approve", NO_PROBLEMS, answered(300)), 1, None),
        (UnexpectedStatusError("approve", NO_PROBLEMS, answered(202)), 1, "unknown"),
        (UnexpectedStatusError("approve", NO_PROBLEMS, answered(299)), 1, "unknown"),
        (AlreadyEvaluatedError("approve", NO_PROBLEMS, answered(400, 2), True), 2, "unknown"),  # noqa: FBT003  (errors pickle by position)
        (AlreadyEvaluatedError("approve", NO_PROBLEMS, answered(400), False), 1, None),  # noqa: FBT003  (as above)
        # it was turned away
        (RejectedError("approve", NO_PROBLEMS, answered(400)), 1, None),
        (AccessDeniedError("approve", NO_PROBLEMS, answered(403)), 1, None),
        (CannotCompleteError("approve", NO_PROBLEMS, answered(409)), 1, None),
        # it was turned away, after an attempt that may have been evaluated
        (RejectedError("approve", NO_PROBLEMS, answered(400, 2)), 2, "unknown"),
        (AccessDeniedError("approve", NO_PROBLEMS, answered(403, 2)), 2, "unknown"),
        (CannotCompleteError("approve", NO_PROBLEMS, answered(409, 2)), 2, "unknown"),
        (UnexpectedStatusError("approve", NO_PROBLEMS, answered(429, 3)), 3, "unknown"),
        # it was decided, and the decision could not be written down
        (DecisionNotRecordedError("approve", "k", "refused", None, None, "OSError"), 1, "refused"),
        # a ledger was in the way
        (OutcomeUnknownError("approve", "k", "lost", ""), 0, None),
        # it was never asked
        (InvalidRequestError(NO_PROBLEMS), 0, None),
        (
            InvalidRequestError(NO_PROBLEMS),
            1,
            None,
        ),  # as a bulk asks, which does not know how often it was sent
        (ClientClosedError(), 0, None),
        # it was given up, before and after it was sent
        (asyncio.CancelledError(), 0, None),
        (asyncio.CancelledError(), 1, "unknown"),
        (KeyboardInterrupt(), 1, "unknown"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_what_the_service_may_have_decided(error: BaseException, attempts: int, outcome: str | None) -> None:
    assert outcome_of(error, attempts) == outcome
