"""What became of an approval that ended without a decision in hand."""

from loanasync.errors import (
    DecisionNotRecordedError,
    LoanError,
    ServiceError,
    TransportError,
    UnexpectedReplyError,
)
from loanasync.errors._service import ReplyOutcome

__all__ = ["outcome_of"]


def outcome_of(error: BaseException, attempts: int) -> ReplyOutcome | None:
    """What the service has decided, as far as an error tells; None when it was not asked, or said no word.

    Args:
        error: What the call raised, cancellation included.
        attempts: How often the request was sent, or may have been.
    """
    match error:
        case UnexpectedReplyError() | DecisionNotRecordedError():
            return error.outcome
        case TransportError():
            lost = error.request_sent == "maybe"
        case ServiceError():
            lost = error.may_be_carried_out
        case LoanError():
            lost = False  # the request was turned away
        case _:
            lost = attempts > 0  # given up while an answer was under way
    return "unknown" if lost else None
