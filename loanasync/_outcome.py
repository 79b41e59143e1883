"""What became of an approval that ended without a decision in hand."""

from loanasync.errors import (
    AlreadyEvaluatedError,
    LoanError,
    ReplyOutcome,
    SystemFaultError,
    TransportError,
    UnexpectedReplyError,
    UnexpectedStatusError,
)

__all__ = ["outcome_of"]

_SERVER_ERROR = 500


def outcome_of(error: BaseException, attempts: int) -> ReplyOutcome | None:
    """What the service has decided, as far as an error tells; None when it was not asked, or said no word.

    Args:
        error: What the call raised, cancellation included.
        attempts: How often the request was sent, or may have been.
    """
    match error:
        case UnexpectedReplyError():
            return error.outcome
        case TransportError():
            lost = error.request_sent == "maybe"
        case SystemFaultError():
            lost = True  # it may have failed after it had evaluated
        case UnexpectedStatusError():
            lost = error.status >= _SERVER_ERROR  # a gateway that gave up waiting, for one
        case AlreadyEvaluatedError():
            lost = error.after_retry
        case LoanError():
            lost = False  # the request was turned away
        case _:
            lost = attempts > 0  # given up while an answer was under way
    return "unknown" if lost else None
